// RUN: %diagnostics

%h = "test.op"() : () -> tensor<4xf32>
// CHECK: tensor.fold: a fold has at least one step, not 0
%r = tensor.fold @step 0 carry(%h) each() with() : (tensor<4xf32>) -> (tensor<4xf32>)

// -----

%x = "test.op"() : () -> tensor<4xf32>
// CHECK: tensor.fold: a fold without carries computes nothing
tensor.fold @step 4 carry() each(%x) with() : (tensor<4xf32>) -> ()

// -----

%h, %x = "test.op"() : () -> (tensor<4xf32>, tensor<4x4xf32>)
// CHECK: tensor.fold: tensor<4x4xf32> has no slice for each of 5 steps
%r = tensor.fold @step 5 carry(%h) each(%x) with() : (tensor<4xf32>, tensor<4x4xf32>) -> (tensor<4xf32>)

// -----

%h, %x = "test.op"() : () -> (tensor<4xf32>, tensor<f32>)
// CHECK: tensor.fold: tensor<f32> has no slice for each of 5 steps
%r = tensor.fold @step 5 carry(%h) each(%x) with() : (tensor<4xf32>, tensor<f32>) -> (tensor<4xf32>)

// -----

%h = "test.op"() : () -> tensor<4xf32>
// CHECK: tensor.fold: histories [1] are not distinct, ascending and below 1
%r = tensor.fold @step 5 carry(%h) each() with() history [1] : (tensor<4xf32>) -> (tensor<4xf32>)

// -----

%h = "test.op"() : () -> tensor<4xf32>
// CHECK: tensor.fold: 2 results of 1 carries
%r, %s = tensor.fold @step 5 carry(%h) each() with() : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)

// -----

%h = "test.op"() : () -> tensor<4xf32>
// CHECK: tensor.fold: result 0 is tensor<5x4xf32>, not tensor<4xf32>
%r = tensor.fold @step 5 carry(%h) each() with() history [0] : (tensor<4xf32>) -> (tensor<4xf32>)

// -----

%h = "test.op"() : () -> tensor<4xf32>
// CHECK: tensor.fold: applies @step, which is no function of this module
%r = tensor.fold @step 5 carry(%h) each() with() : (tensor<4xf32>) -> (tensor<4xf32>)

// -----

func.func private @step(%h: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  func.return %h : tensor<4xf32>
}
%h, %x = "test.op"() : () -> (tensor<4xf32>, tensor<5x3xf32>)
// CHECK: tensor.fold: @step does not take the carries, the slices and the shared tensors
%r = tensor.fold @step 5 carry(%h) each(%x) with() : (tensor<4xf32>, tensor<5x3xf32>) -> (tensor<4xf32>)

// -----

func.func private @step(%h: tensor<4xf32>, %x: tensor<3xf32>) -> tensor<3xf32> {
  func.return %x : tensor<3xf32>
}
%h, %x = "test.op"() : () -> (tensor<4xf32>, tensor<5x3xf32>)
// CHECK: tensor.fold: @step does not give the next carries
%r = tensor.fold @step 5 carry(%h) each(%x) with() : (tensor<4xf32>, tensor<5x3xf32>) -> (tensor<4xf32>)
