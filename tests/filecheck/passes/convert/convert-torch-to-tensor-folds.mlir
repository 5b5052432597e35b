// RUN: dl-opt %s -p verify-level{level=torch},convert-torch-to-tensor,verify-level{level=tensor} --split-input-file | filecheck %s

// Slices of 16 bytes stay as they are: the step is converted, the fold does not change.
// CHECK: func.func private @step(%h: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
// CHECK-NEXT: %[[H:.*]] = arith.addf %h, %x : tensor<4xf32>
// CHECK-NEXT: func.return %[[H]] : tensor<4xf32>
// CHECK-LABEL: @main
// CHECK-NEXT: %[[R:.*]] = tensor.scan @step 3 carry(%h : tensor<4xf32>) each(%x : tensor<3x4xf32>) history [0]
// CHECK-SAME: -> tensor<3x4xf32>
// CHECK-NEXT: func.return %[[R]]
func.func private @step(%h: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = torch.add.Tensor(self = %h, other = %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
func.func @main(%h: tensor<4xf32>, %x: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %0 = tensor.scan @step 3 carry(%h : tensor<4xf32>) each(%x : tensor<3x4xf32>) history [0] -> tensor<3x4xf32>
  func.return %0 : tensor<3x4xf32>
}

// -----

// Slices of 12 bytes are padded to 16, and so are the rows of the history. The old step has no users any more.
// CHECK-NOT: tensor<3xf32>, %x: tensor<3xf32>
// CHECK: func.func private @[[STEP:.*]](%{{.*}}: tensor<4xf32>, %{{.*}}: tensor<4xf32>) -> tensor<4xf32> {
// CHECK: tensor.index_map {{.*}} : tensor<4xf32> -> tensor<3xf32>
// CHECK: arith.addf {{.*}} : tensor<3xf32>
// CHECK: func.return {{.*}} : tensor<4xf32>
// CHECK-LABEL: @main
// CHECK: %[[R:.*]] = tensor.scan @[[STEP]] 2 carry({{.*}} : tensor<4xf32>) each({{.*}} : tensor<2x4xf32>) history [0]
// CHECK-SAME: -> tensor<2x4xf32>
// CHECK-NEXT: tensor.index_map %[[R]][d0, d1] : tensor<2x4xf32> -> tensor<2x3xf32>
func.func private @step(%h: tensor<3xf32>, %x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = torch.add.Tensor(self = %h, other = %x) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  func.return %0 : tensor<3xf32>
}
func.func @main(%h: tensor<3xf32>, %x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = tensor.scan @step 2 carry(%h : tensor<3xf32>) each(%x : tensor<2x3xf32>) history [0] -> tensor<2x3xf32>
  func.return %0 : tensor<2x3xf32>
}
