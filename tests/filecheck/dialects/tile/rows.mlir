// RUN: %roundtrip

// CHECK:      %r = tile.row : !tile.row<13 of tensor<4096xf32>>
// CHECK-NEXT: tile.keep %x, %r[%k] : tensor<4096xf32>, !tile.row<13 of tensor<4096xf32>>
// CHECK-NEXT: %y = tile.kept %r[%k] : !tile.row<13 of tensor<4096xf32>> -> tensor<4096xf32>
%x, %k = "test.op"() : () -> (tensor<4096xf32>, index)
%r = tile.row : !tile.row<13 of tensor<4096xf32>>
tile.keep %x, %r[%k] : tensor<4096xf32>, !tile.row<13 of tensor<4096xf32>>
%y = tile.kept %r[%k] : !tile.row<13 of tensor<4096xf32>> -> tensor<4096xf32>
