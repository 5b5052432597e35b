// RUN: %diagnostics

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
// CHECK: expected at least one slot, but got 0
%r = "test.op"() : () -> (!tile.ring<0 of tensor<2x4xbf16, #a>>)

// -----

// CHECK: expected a ring of tiles in shared memory, but got tensor<2x4xbf16>
%r = "test.op"() : () -> (!tile.ring<2 of tensor<2x4xbf16>>)

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%x = "test.op"() : () -> (memref<4x4xbf16>)
// CHECK: tile.tma_load: expected every dimension of a box to run along one dimension of the buffer with stride one, but got (d0, d1) -> (d0, (d1 * 2))
%b = tile.tma_load %x[d0, d1 * 2] : memref<4x4xbf16> -> tensor<2x4xbf16, #a>

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%x = "test.op"() : () -> (memref<4x4xbf16>)
// CHECK: tile.tma_load: expected every dimension of a box to run along one dimension of the buffer with stride one, but got (d0, d1) -> ((d0 floordiv 2), d1)
%b = tile.tma_load %x[d0 floordiv 2, d1] : memref<4x4xbf16> -> tensor<2x4xbf16, #a>

// -----

%x = "test.op"() : () -> (memref<4x4xbf16>)
// CHECK: tile.tma_load: expected a result in shared memory, but got tensor<2x4xbf16>
%b = tile.tma_load %x[d0, d1] : memref<4x4xbf16> -> tensor<2x4xbf16>

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%x = "test.op"() : () -> (memref<4x4xf16>)
// CHECK: tile.tma_load: expected one element type of buffer and tile, but got f16 and bf16
%b = tile.tma_load %x[d0, d1] : memref<4x4xf16> -> tensor<2x4xbf16, #a>

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%r, %t = "test.op"() : () -> (!tile.ring<2 of tensor<2x4xbf16, #a>>, tensor<2x4xbf16, #a>)
// CHECK: tile.producer_load: expected tiles that are each the result of a tile.tma_load, but got another tile
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
// CHECK: tile.warp_specialize: expected tile.consumer_release in the consumer, but got it in the other partition
tile.warp_specialize {
} producer warps 4 {
  tile.consumer_release %r : !tile.ring<2 of tensor<2x4xbf16, #a>>
}

// -----

#a = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%r, %x = "test.op"() : () -> (!tile.ring<2 of tensor<2x4xbf16, #a>>, memref<2x4xbf16>)
// CHECK: tile.warp_specialize: expected tile.producer_load in the producer, but got it in the other partition
tile.warp_specialize {
  %b = tile.tma_load %x[d0, d1] : memref<2x4xbf16> -> tensor<2x4xbf16, #a>
  tile.producer_load %r, %b : !tile.ring<2 of tensor<2x4xbf16, #a>>
} producer warps 4 {
}

// -----

// CHECK: tile.warp_specialize: expected at least one producer warp, and two numbers of registers or none, but got 4 and 1
tile.warp_specialize {
} producer warps 4 registers [40] {
}

// -----

#s = #tile.shared<offset = [[0, 1], [0, 2], [0, 4]]>

// CHECK: error: tile.tma_load: expected a kernel with clusters for `multicast`, but got one without
tile.kernel @k(%x: memref<8x8xbf16>) blocks (%i) in [8] warps 1 {
  %a = tile.tma_load %x[d0, d1] multicast : memref<8x8xbf16> -> tensor<1x8xbf16, #s>
}
