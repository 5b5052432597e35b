// RUN: %roundtrip

// CHECK:      %r = tile.row : !tile.row<13 of tensor<4096xf32>>
// CHECK-NEXT: tile.keep %x, %r[%k] : tensor<4096xf32>, !tile.row<13 of tensor<4096xf32>>
// CHECK-NEXT: %y = tile.kept %r[%k] : !tile.row<13 of tensor<4096xf32>> -> tensor<4096xf32>
%x, %k = "test.op"() : () -> (tensor<4096xf32>, index)
%r = tile.row : !tile.row<13 of tensor<4096xf32>>
tile.keep %x, %r[%k] : tensor<4096xf32>, !tile.row<13 of tensor<4096xf32>>
%y = tile.kept %r[%k] : !tile.row<13 of tensor<4096xf32>> -> tensor<4096xf32>

// CHECK:      %a, %b = tile.peers %m, %t : f32, tensor<8xi64> -> tensor<4xf32>, tensor<4x8xi64>
%m, %t = "test.op"() : () -> (f32, tensor<8xi64>)
%a, %b = tile.peers %m, %t : f32, tensor<8xi64> -> tensor<4xf32>, tensor<4x8xi64>
