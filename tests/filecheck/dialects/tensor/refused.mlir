// RUN: %diagnostics

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: {{:\d+}}:26: error: expected a dimension of tensor<4x8xf32>, but got d2
%y = tensor.index_map %x[d2, d0] : tensor<4x8xf32> -> tensor<4x8xf32>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.index_map: expected a map of 2 dimensions, one for each index, but got 1
%y = "tensor.index_map"(%x) <{map = affine_map<(d0) -> (d0, d0)>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.index_map: expected 2 coordinates for a source, but got 1
%y = tensor.index_map %x[d0] : tensor<4x8xf32> -> tensor<4x8xf32>

// -----

%x, %i = "test.op"() : () -> (tensor<4x8xf32>, tensor<4x8xi64>)
// CHECK: {{:\d+}}:30: error: expected a dimension such as d0, but got %i
%y = tensor.index_map %x[d0, %i] : tensor<4x8xf32> -> tensor<4x8xf32>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.index_map: expected both a domain and a fill value, or neither, but got only a domain
%y = tensor.index_map %x[d0, d1] where 0 <= d0 < 4 : tensor<4x8xf32> -> tensor<4x8xf32>

// -----

%x, %z = "test.op"() : () -> (tensor<4x8xf32>, f32)
// CHECK: tensor.index_map: expected both a domain and a fill value, or neither, but got only a fill value
%y = tensor.index_map %x[d0, d1] else %z : tensor<4x8xf32> -> tensor<4x8xf32>

// -----

%x, %z = "test.op"() : () -> (tensor<4x8xf32>, f32)
// CHECK: {{:\d+}}:45: error: expected a dimension of tensor<4x8xf32>, but got d2
%y = tensor.index_map %x[d0, d1] where 0 <= d2 < 4 else %z : tensor<4x8xf32> -> tensor<4x8xf32>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.index_map: expected one element type of source, fill and result, but got f32, no fill and f64
%y = tensor.index_map %x[d0, d1] : tensor<4x8xf32> -> tensor<4x8xf64>

// -----

%x, %i = "test.op"() : () -> (tensor<4x8xf32>, tensor<5xf32>)
// CHECK: tensor.gather: expected an integer index tensor of the result's shape, but got tensor<5xf32>
%y = tensor.gather %x[%i, d0] : tensor<4x8xf32> -> tensor<5xf32>

// -----

%x, %i = "test.op"() : () -> (tensor<4x8xf32>, tensor<5xi64>)
// CHECK: tensor.gather: expected an integer index tensor of the result's shape, but got tensor<5xi64>
%y = tensor.gather %x[%i, d0] : tensor<4x8xf32> -> tensor<6xf32>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.gather: expected at least one index tensor, but got none; use tensor.index_map
%y = "tensor.gather"(%x) <{map = affine_map<(i) -> (i, i)>}> : (tensor<4x8xf32>) -> tensor<4xf32>

// -----

%x, %i = "test.op"() : () -> (tensor<4x8xf32>, tensor<5xi64>)
// CHECK: tensor.gather: expected one element type of source and result, but got f32 and i32
%y = tensor.gather %x[%i, d0] : tensor<4x8xf32> -> tensor<5xi32>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.reduce: expected distinct, ascending dimensions below 2 to reduce, but got [1, 0]
%y = tensor.reduce add %x over [1, 0] : tensor<4x8xf32> -> tensor<f32>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.reduce: expected tensor<4xf32> as the reduction of tensor<4x8xf32> over [1], but got tensor<8xf32>
%y = tensor.reduce add %x over [1] : tensor<4x8xf32> -> tensor<8xf32>

// -----

%x = "test.op"() : () -> tensor<4x8xbf16>
// CHECK: tensor.reduce: expected a type to compute in, but got bf16, a storage type; cast to f32 first
%y = tensor.reduce add %x over [1] : tensor<4x8xbf16> -> tensor<4xbf16>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.reduce: expected a type that the kind or supports, but got f32
%y = tensor.reduce or %x over [1] : tensor<4x8xf32> -> tensor<4xf32>

// -----

// CHECK: tensor.iota: expected a dimension of tensor<4x8xi64>, but got 2
%y = tensor.iota 2 : tensor<4x8xi64>

// -----

// CHECK: tensor.iota: expected an integer or index element type, but got f32
%y = tensor.iota 1 : tensor<4x8xf32>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.index_map: expected a division by a positive number, but got (d0 mod 0)
%y = tensor.index_map %x[d0 mod 0, d0] : tensor<4x8xf32> -> tensor<4xf32>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
%f = "test.op"() : () -> f32
// CHECK: {{:\d+}}:45: error: expected an affine expression, which multiplies and divides indices by numbers only
%y = tensor.index_map %x[d0, d0] where 0 <= d0 * d0 < 4 else %f : tensor<4x8xf32> -> tensor<4xf32>

// -----

// CHECK: :23: error: expected a constant of type f32 with a point, as 4.0, or as bits, 0x..., but got 4
%y = payload.constant 4 : f32

// -----

// CHECK: :23: error: expected at most 16 bits of f16, but got 0xff800000
%y = payload.constant 0xff800000 : f16

// -----

// CHECK: tensor.reduce: expected {{.*}} as the reduction of tensor<?x4xf32, #payload.extents<#payload.symbol<n[0:5]>, 4>> over [1], but got
func.func @main(%x: tensor<?x4xf32, #payload.extents<#payload.symbol<n[0:5]>, 4>>) {
  %0 = tensor.reduce add %x over [1] : tensor<?x4xf32, #payload.extents<#payload.symbol<n[0:5]>, 4>>
    -> tensor<?xf32, #payload.extents<#payload.symbol<m[0:5]>>>
  func.return
}
