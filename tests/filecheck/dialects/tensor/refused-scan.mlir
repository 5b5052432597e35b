// RUN: %diagnostics

%h = "test.op"() : () -> tensor<4xf32>
// CHECK: tensor.scan: expected at least one step, but got 0
%r = tensor.scan @step 0 carry(%h : tensor<4xf32>) -> tensor<4xf32>

// -----

%x = "test.op"() : () -> tensor<4xf32>
// CHECK: tensor.scan: expected at least one carry, but got none
tensor.scan @step 4 carry( : ) each(%x : tensor<4xf32>) ->

// -----

%h, %x = "test.op"() : () -> (tensor<4xf32>, tensor<4x4xf32>)
// CHECK: tensor.scan: expected a leading dimension of 5, one slice for each step, but got tensor<4x4xf32>
%r = tensor.scan @step 5 carry(%h : tensor<4xf32>) each(%x : tensor<4x4xf32>) -> tensor<4xf32>

// -----

%h, %x = "test.op"() : () -> (tensor<4xf32>, tensor<f32>)
// CHECK: tensor.scan: expected a leading dimension of 5, one slice for each step, but got tensor<f32>
%r = tensor.scan @step 5 carry(%h : tensor<4xf32>) each(%x : tensor<f32>) -> tensor<4xf32>

// -----

%h = "test.op"() : () -> tensor<4xf32>
// CHECK: tensor.scan: expected distinct, ascending numbers below 1 as history, but got [1]
%r = tensor.scan @step 5 carry(%h : tensor<4xf32>) history [1] -> tensor<4xf32>

// -----

%h = "test.op"() : () -> tensor<4xf32>
// CHECK: tensor.scan: expected 1 results, one for each carry, but got 2
%r, %s = tensor.scan @step 5 carry(%h : tensor<4xf32>) -> tensor<4xf32>, tensor<4xf32>

// -----

%h = "test.op"() : () -> tensor<4xf32>
// CHECK: tensor.scan: expected tensor<5x4xf32> as result 0, but got tensor<4xf32>
%r = tensor.scan @step 5 carry(%h : tensor<4xf32>) history [0] -> tensor<4xf32>

// -----

%h = "test.op"() : () -> tensor<4xf32>
// CHECK: tensor.scan: expected a function of this module, but got @step
%r = tensor.scan @step 5 carry(%h : tensor<4xf32>) -> tensor<4xf32>

// -----

func.func private @step(%h: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  func.return %h : tensor<4xf32>
}
%h, %x = "test.op"() : () -> (tensor<4xf32>, tensor<5x3xf32>)
// CHECK: tensor.scan: expected @step to take the carries, the slices and the shared tensors (tensor<4xf32>, tensor<3xf32>), but got (tensor<4xf32>, tensor<4xf32>)
%r = tensor.scan @step 5 carry(%h : tensor<4xf32>) each(%x : tensor<5x3xf32>) -> tensor<4xf32>

// -----

func.func private @step(%h: tensor<4xf32>, %x: tensor<3xf32>) -> tensor<3xf32> {
  func.return %x : tensor<3xf32>
}
%h, %x = "test.op"() : () -> (tensor<4xf32>, tensor<5x3xf32>)
// CHECK: tensor.scan: expected @step to return the next carries, but got (tensor<3xf32>)
%r = tensor.scan @step 5 carry(%h : tensor<4xf32>) each(%x : tensor<5x3xf32>) -> tensor<4xf32>
