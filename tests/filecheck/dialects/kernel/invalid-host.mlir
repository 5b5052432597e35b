// RUN: %diagnostics

%h, %t = "test.op"() : () -> (memref<5x4xf32>, index)
// CHECK: kernel.slice: expected a row map of one index and one result, but got (d0) -> (d0, d0)
%a = kernel.slice %h[%t, %t] : memref<5x4xf32> -> memref<4xf32>

// -----

%h, %t = "test.op"() : () -> (memref<f32>, index)
// CHECK: kernel.slice: expected a buffer with rows, but got memref<f32>
%a = kernel.slice %h[%t] : memref<f32> -> memref<f32>

// -----

%h, %t = "test.op"() : () -> (memref<5x4xf32>, index)
// CHECK: kernel.slice: expected a slice with the element type of memref<5x4xf32>, but got memref<4xi32>
%a = kernel.slice %h[%t] : memref<5x4xf32> -> memref<4xi32>

// -----

%h, %t = "test.op"() : () -> (memref<5x4xf32>, index)
// CHECK: kernel.slice: expected a slice no larger than a row of memref<5x4xf32>, but got memref<5xf32>
%a = kernel.slice %h[%t] : memref<5x4xf32> -> memref<5xf32>

// -----

%h, %t = "test.op"() : () -> (memref<5x3xf32>, index)
// CHECK: kernel.slice: expected rows of a multiple of 16 bytes, but got 12
%a = kernel.slice %h[%t] : memref<5x3xf32> -> memref<3xf32>
