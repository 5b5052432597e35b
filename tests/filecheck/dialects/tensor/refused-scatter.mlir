// RUN: %diagnostics

%x, %v, %i = "test.op"() : () -> (tensor<9xf32>, tensor<5xf32>, tensor<4xi64>)
// CHECK: tensor.scatter: expected an integer index tensor of the values' shape, but got tensor<4xi64>
%y = tensor.scatter add %v, %x[%i] : tensor<5xf32>, tensor<9xf32>

// -----

%x, %v, %i = "test.op"() : () -> (tensor<9xf32>, tensor<5xf32>, tensor<5xf32>)
// CHECK: tensor.scatter: expected an integer index tensor of the values' shape, but got tensor<5xf32>
%y = tensor.scatter add %v, %x[%i] : tensor<5xf32>, tensor<9xf32>

// -----

%x, %v, %i = "test.op"() : () -> (tensor<9xf32>, tensor<5xf64>, tensor<5xi64>)
// CHECK: tensor.scatter: expected one element type of init and values, but got f32 and f64
%y = tensor.scatter add %v, %x[%i] : tensor<5xf64>, tensor<9xf32>

// -----

%x, %v, %i = "test.op"() : () -> (tensor<9xi8>, tensor<5xi8>, tensor<5xi64>)
// CHECK: tensor.scatter: expected f32, f64, i32 or i64 elements to combine atomically, but got i8; cast to 32 or 64 bits first
%y = tensor.scatter add %v, %x[%i] : tensor<5xi8>, tensor<9xi8>

// -----

%x, %v, %i = "test.op"() : () -> (tensor<9xf32>, tensor<5xf32>, tensor<5xi64>)
// CHECK: tensor.scatter: expected a type that the kind or supports, but got f32
%y = tensor.scatter or %v, %x[%i] : tensor<5xf32>, tensor<9xf32>

// -----

%x, %v = "test.op"() : () -> (tensor<9xf32>, tensor<5xf32>)
// CHECK: tensor.scatter: expected at least one index tensor, but got none
%y = "tensor.scatter"(%x, %v) <{kind = #tensor<kind add>, map = affine_map<(d0) -> (d0)>}> : (tensor<9xf32>, tensor<5xf32>) -> tensor<9xf32>

// -----

%x, %v, %i = "test.op"() : () -> (tensor<9x9xf32>, tensor<5xf32>, tensor<5xi64>)
// CHECK: tensor.scatter: expected 2 coordinates for a result, but got 1
%y = tensor.scatter add %v, %x[%i] : tensor<5xf32>, tensor<9x9xf32>
