// RUN: %diagnostics

// CHECK: a row has at least one place, not 0
%r = "test.op"() : () -> (!tile.row<0 of tensor<8xf32>>)

// -----

// CHECK: a row holds tiles without a layout, not f32
%r = "test.op"() : () -> (!tile.row<2 of f32>)

// -----

#a = #tile.shared<offset = [[1], [2], [4]]>
// CHECK: a row holds tiles without a layout, not tensor<8xf32, #tile.shared
%r = "test.op"() : () -> (!tile.row<2 of tensor<8xf32, #a>>)

// -----

%x, %k, %r = "test.op"() : () -> (tensor<4xf32>, index, !tile.row<2 of tensor<8xf32>>)
// CHECK: tile.keep: tensor<4xf32> is no tile of !tile.row<2 of tensor<8xf32>>
tile.keep %x, %r[%k] : tensor<4xf32>, !tile.row<2 of tensor<8xf32>>

// -----

%k, %r = "test.op"() : () -> (index, !tile.row<2 of tensor<8xf32>>)
// CHECK: tile.kept: tensor<8xbf16> is no tile of !tile.row<2 of tensor<8xf32>>
%x = tile.kept %r[%k] : !tile.row<2 of tensor<8xf32>> -> tensor<8xbf16>
