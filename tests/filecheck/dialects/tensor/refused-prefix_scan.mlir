// RUN: %diagnostics

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.prefix_scan: dimension 2 of tensor<4x8xf32>
%y = tensor.prefix_scan add %x along 2 : tensor<4x8xf32>

// -----

%x = "test.op"() : () -> tensor<4x8xbf16>
// CHECK: tensor.prefix_scan: reduces bf16, a storage type: cast to f32 first
%y = tensor.prefix_scan add %x along 1 : tensor<4x8xbf16>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.prefix_scan: reduction xor of f32
%y = tensor.prefix_scan xor %x along 1 : tensor<4x8xf32>

// -----

%x = "test.op"() : () -> tensor<4x8xi32>
// CHECK: tensor.prefix_scan: reduction logaddexp of i32
%y = tensor.prefix_scan logaddexp %x along 1 : tensor<4x8xi32>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: tensor.reduce: reduction logaddexp: only scans combine so
%y = tensor.reduce logaddexp %x over [1] : tensor<4x8xf32> -> tensor<4xf32>
