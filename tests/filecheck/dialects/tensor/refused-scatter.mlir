// RUN: %diagnostics

%x, %v, %i = "test.op"() : () -> (tensor<9xf32>, tensor<5xf32>, tensor<4xi64>)
// CHECK: tensor.scatter: an index tensor is an integer tensor of the values' shape, not tensor<4xi64>
%y = tensor.scatter add %x, %v[affine_map<(d0)[s0] -> (s0)>](%i) : tensor<9xf32>, tensor<5xf32>, tensor<4xi64>

// -----

%x, %v, %i = "test.op"() : () -> (tensor<9xf32>, tensor<5xf32>, tensor<5xf32>)
// CHECK: tensor.scatter: an index tensor is an integer tensor of the values' shape, not tensor<5xf32>
%y = tensor.scatter add %x, %v[affine_map<(d0)[s0] -> (s0)>](%i) : tensor<9xf32>, tensor<5xf32>, tensor<5xf32>

// -----

%x, %v, %i = "test.op"() : () -> (tensor<9xf32>, tensor<5xf64>, tensor<5xi64>)
// CHECK: tensor.scatter: init and values have one element type
%y = tensor.scatter add %x, %v[affine_map<(d0)[s0] -> (s0)>](%i) : tensor<9xf32>, tensor<5xf64>, tensor<5xi64>

// -----

%x, %v, %i = "test.op"() : () -> (tensor<9xi8>, tensor<5xi8>, tensor<5xi64>)
// CHECK: tensor.scatter: nothing combines i8 in memory: cast to 32 or 64 bits first
%y = tensor.scatter add %x, %v[affine_map<(d0)[s0] -> (s0)>](%i) : tensor<9xi8>, tensor<5xi8>, tensor<5xi64>

// -----

%x, %v, %i = "test.op"() : () -> (tensor<9xf32>, tensor<5xf32>, tensor<5xi64>)
// CHECK: tensor.scatter: reduction or of f32
%y = tensor.scatter or %x, %v[affine_map<(d0)[s0] -> (s0)>](%i) : tensor<9xf32>, tensor<5xf32>, tensor<5xi64>

// -----

%x, %v = "test.op"() : () -> (tensor<9xf32>, tensor<5xf32>)
// CHECK: tensor.scatter: a scatter has index tensors
%y = "tensor.scatter"(%x, %v) <{kind = #tensor<kind add>, map = affine_map<(d0) -> (d0)>}> : (tensor<9xf32>, tensor<5xf32>) -> tensor<9xf32>

// -----

%x, %v, %i = "test.op"() : () -> (tensor<9x9xf32>, tensor<5xf32>, tensor<5xi64>)
// CHECK: tensor.scatter: the map has 1 results for a result of rank 2
%y = tensor.scatter add %x, %v[affine_map<(d0)[s0] -> (s0)>](%i) : tensor<9x9xf32>, tensor<5xf32>, tensor<5xi64>
