// RUN: %diagnostics

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.prefix_scan: expected a dimension of tensor<4x8xf32>, but got 2
%y = tensor.prefix_scan add %x along 2 : tensor<4x8xf32>

// -----

%x = "test.op"() : () -> tensor<4x8xbf16>
// CHECK: tensor.prefix_scan: expected a type to compute in, but got bf16, a storage type; cast to f32 first
%y = tensor.prefix_scan add %x along 1 : tensor<4x8xbf16>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.prefix_scan: expected a type that the kind xor supports, but got f32
%y = tensor.prefix_scan xor %x along 1 : tensor<4x8xf32>

// -----

%x = "test.op"() : () -> tensor<4x8xi32>
// CHECK: tensor.prefix_scan: expected a type that the kind logaddexp supports, but got i32
%y = tensor.prefix_scan logaddexp %x along 1 : tensor<4x8xi32>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.reduce: expected a scan for the kind logaddexp, but got a reduction
%y = tensor.reduce logaddexp %x over [1] : tensor<4x8xf32> -> tensor<4xf32>
