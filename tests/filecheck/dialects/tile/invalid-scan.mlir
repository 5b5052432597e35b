// RUN: %diagnostics

%x, %z = "test.op"() : () -> (tensor<8x128xf32>, tensor<8xf32>)
// CHECK: tile.scan: dimension 2 of tensor<8x128xf32>
%s, %c = tile.scan add %x, %z along 2 : tensor<8x128xf32>, tensor<8xf32>

// -----

%x, %z = "test.op"() : () -> (tensor<8x128xf32>, tensor<8xf32>)
// CHECK: tile.scan: tensor<8xf32> is not tensor<8x128xf32> without dimension 0
%s, %c = tile.scan add %x, %z along 0 : tensor<8x128xf32>, tensor<8xf32>

// -----

%x, %z = "test.op"() : () -> (tensor<128xf32>, f64)
// CHECK: tile.scan: f64 is not tensor<128xf32> without dimension 0
%s, %c = tile.scan add %x, %z along 0 : tensor<128xf32>, f64

// -----

%x, %z = "test.op"() : () -> (tensor<128xi32>, i32)
// CHECK: tile.scan: reduction logaddexp of i32
%s, %c = tile.scan logaddexp %x, %z along 0 : tensor<128xi32>, i32
