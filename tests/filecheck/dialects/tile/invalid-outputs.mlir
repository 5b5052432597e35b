// RUN: %diagnostics

%x = "test.op"() : () -> (tensor<8x32xbf16>)
// CHECK: tile.slice: expected a part of tensor<8x32xbf16> and one offset for each dimension, but got tensor<8x16xf16> at [0, 0]
%p = tile.slice %x at [0, 0] : tensor<8x32xbf16> -> tensor<8x16xf16>

// -----

%x = "test.op"() : () -> (tensor<8x32xbf16>)
// CHECK: tile.slice: expected a part of tensor<8x32xbf16> and one offset for each dimension, but got tensor<16xbf16> at [0]
%p = tile.slice %x at [0] : tensor<8x32xbf16> -> tensor<16xbf16>

// -----

%x = "test.op"() : () -> (tensor<8x32xbf16>)
// CHECK: tile.slice: expected a part of tensor<8x32xbf16> and one offset for each dimension, but got tensor<8x16xbf16> at [0]
%p = tile.slice %x at [0] : tensor<8x32xbf16> -> tensor<8x16xbf16>

// -----

%x = "test.op"() : () -> (tensor<8x32xbf16>)
// CHECK: tile.slice: expected a part inside of [8, 32], at multiples of its extents, but got [8, 16] at [0, 8]
%p = tile.slice %x at [0, 8] : tensor<8x32xbf16> -> tensor<8x16xbf16>

// -----

%x = "test.op"() : () -> (tensor<8x32xbf16>)
// CHECK: tile.slice: expected a part inside of [8, 32], at multiples of its extents, but got [8, 16] at [0, 32]
%p = tile.slice %x at [0, 32] : tensor<8x32xbf16> -> tensor<8x16xbf16>

// -----

#s = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%x = "test.op"() : () -> (tensor<4x4xbf16>)
// CHECK: tile.slice: expected source and part in registers, but got tensor<4x4xbf16> and tensor<2x4xbf16
%p = tile.slice %x at [0, 0] : tensor<4x4xbf16> -> tensor<2x4xbf16, #s>

// -----

%s, %y = "test.op"() : () -> (tensor<2x4xbf16>, memref<4x4xbf16>)
// CHECK: tile.tma_store: expected a tile in shared memory, but got tensor<2x4xbf16>
tile.tma_store %s, %y[d0, d1] : tensor<2x4xbf16>, memref<4x4xbf16>

// -----

#s = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%s, %y = "test.op"() : () -> (tensor<2x4xbf16, #s>, memref<4x4xf16>)
// CHECK: tile.tma_store: expected one element type of buffer and tile, but got f16 and bf16
tile.tma_store %s, %y[d0, d1] : tensor<2x4xbf16, #s>, memref<4x4xf16>

// -----

#s = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%s, %y = "test.op"() : () -> (tensor<2x4xbf16, #s>, memref<4x4xbf16>)
// CHECK: tile.tma_store: expected every dimension of a box to run along one dimension of the buffer with stride one, but got (d0, d1) -> (d0, (d1 * 2))
tile.tma_store %s, %y[d0, d1 * 2] : tensor<2x4xbf16, #s>, memref<4x4xbf16>

// -----

#s = #tile.shared<offset = [[0, 1], [0, 2], [1, 0]]>
%s, %y = "test.op"() : () -> (tensor<2x4xbf16, #s>, memref<4x4x4xbf16>)
// CHECK: tile.tma_store: expected 3 coordinates for a buffer, but got 2
tile.tma_store %s, %y[d0, d1] : tensor<2x4xbf16, #s>, memref<4x4x4xbf16>
