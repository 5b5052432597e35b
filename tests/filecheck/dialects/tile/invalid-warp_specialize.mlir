// RUN: %diagnostics

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
// CHECK: expected at least one slot, but got 0
%r = "test.op"() : () -> (!tile.ring<0 of tensor<2x4xbf16, #a>>)

// -----

// CHECK: expected a ring of tiles in shared memory
%r = "test.op"() : () -> (!tile.ring<2 of tensor<2x4xbf16>>)

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%x = "test.op"() : () -> (memref<4x4xbf16>)
// CHECK: tile.tma_load: expected every dimension of a box to run along one dimension of the buffer with stride one
%b = tile.tma_load %x[d0, d1 * 2] : memref<4x4xbf16> -> tensor<2x4xbf16, #a>

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%x = "test.op"() : () -> (memref<4x4xbf16>)
// CHECK: tile.tma_load: expected every dimension of a box to run along one dimension of the buffer with stride one
%b = tile.tma_load %x[d0 floordiv 2, d1] : memref<4x4xbf16> -> tensor<2x4xbf16, #a>

// -----

%x = "test.op"() : () -> (memref<4x4xbf16>)
// CHECK: tile.tma_load: expected a result in shared memory, but got tensor<2x4xbf16>
%b = tile.tma_load %x[d0, d1] : memref<4x4xbf16> -> tensor<2x4xbf16>

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%x = "test.op"() : () -> (memref<4x4xf16>)
// CHECK: tile.tma_load: expected one element type of buffer and tile
%b = tile.tma_load %x[d0, d1] : memref<4x4xf16> -> tensor<2x4xbf16, #a>

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%r, %t = "test.op"() : () -> (!tile.ring<2 of tensor<2x4xbf16, #a>>, tensor<2x4xbf16, #a>)
// CHECK: tile.producer_load: expected tiles that are each the result of a tile.tma_load
tile.producer_load %r, %t : !tile.ring<2 of tensor<2x4xbf16, #a>>

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%r, %t = "test.op"() : () -> (!tile.ring<2 of tensor<2x4xbf16, #a>>, tensor<2x4xf16, #a>)
// CHECK: tile.producer_load: expected the tiles of !tile.ring<2 of tensor<2x4xbf16
"tile.producer_load"(%r, %t) : (!tile.ring<2 of tensor<2x4xbf16, #a>>, tensor<2x4xf16, #a>) -> ()

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%r = "test.op"() : () -> (!tile.ring<2 of tensor<2x4xbf16, #a>>)
// CHECK: tile.consumer_wait: expected the tiles of !tile.ring<2 of tensor<2x4xbf16
%t = "tile.consumer_wait"(%r) : (!tile.ring<2 of tensor<2x4xbf16, #a>>) -> tensor<2x4xf16, #a>

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%r = "test.op"() : () -> (!tile.ring<2 of tensor<2x4xbf16, #a>>)
// CHECK: tile.warp_specialize: a partition that takes, which is what the other one does
tile.warp_specialize {
} producer warps 4 {
  tile.consumer_release %r : !tile.ring<2 of tensor<2x4xbf16, #a>>
}

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%r, %x = "test.op"() : () -> (!tile.ring<2 of tensor<2x4xbf16, #a>>, memref<2x4xbf16>)
// CHECK: tile.warp_specialize: a partition that puts, which is what the other one does
tile.warp_specialize {
  %b = tile.tma_load %x[d0, d1] : memref<2x4xbf16> -> tensor<2x4xbf16, #a>
  tile.producer_load %r, %b : !tile.ring<2 of tensor<2x4xbf16, #a>>
} producer warps 4 {
}

// -----

// CHECK: tile.warp_specialize: 4 warps with 1 numbers of registers
tile.warp_specialize {
} producer warps 4 registers [40] {
}

// -----

#s = #tile.shared<offset = [[0, 1], [0, 2], [0, 4]]>

// CHECK: error: tile.tma_load: a box for all blocks of a cluster in a kernel without clusters
tile.kernel @k(%x: memref<8x8xbf16>) blocks (%i) in [8] warps 1 {
  %a = tile.tma_load %x[d0, d1] multicast : memref<8x8xbf16> -> tensor<1x8xbf16, #s>
}
