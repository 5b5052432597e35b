// RUN: %diagnostics

%x, %z = "test.op"() : () -> (tensor<8x128xf32>, tensor<8xf32>)
// CHECK: tile.scan: expected a dimension of tensor<8x128xf32>, but got 2
%s, %c = tile.scan add %x, %z along 2 : tensor<8x128xf32>, tensor<8xf32>

// -----

%x, %z = "test.op"() : () -> (tensor<8x128xf32>, tensor<8xf32>)
// CHECK: tile.scan: expected tensor<8x128xf32> without dimension 0 as the initial values, but got tensor<8xf32>
%s, %c = tile.scan add %x, %z along 0 : tensor<8x128xf32>, tensor<8xf32>

// -----

%x, %z = "test.op"() : () -> (tensor<128xf32>, f64)
// CHECK: tile.scan: expected tensor<128xf32> without dimension 0 as the initial values, but got f64
%s, %c = tile.scan add %x, %z along 0 : tensor<128xf32>, f64

// -----

%x, %z = "test.op"() : () -> (tensor<128xi32>, i32)
// CHECK: tile.scan: expected a type that the kind logaddexp supports, but got i32
%s, %c = tile.scan logaddexp %x, %z along 0 : tensor<128xi32>, i32
