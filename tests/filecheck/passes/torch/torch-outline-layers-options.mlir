// RUN: dl-opt %s -p "torch-outline-layers{min_ops=2 containing=torch.exp}" | filecheck %s
// RUN: dl-opt %s -p "torch-outline-layers{min_ops=2 repeats=3}" | filecheck %s --check-prefix=FEW

// Only layers with an exponential become functions.
// CHECK: func.func private @layer(
// CHECK-NOT: func.func private
// CHECK-LABEL: func.func @main
// CHECK: torch.neg
// CHECK: func.call @layer
// CHECK: func.call @layer

// No layer is repeated three times.
// FEW-NOT: func.call
func.func @main(%x: tensor<4xf32>, %t: tensor<4xf32>) -> tensor<4xf32> {
  %0 = torch.neg(self = %x) {layer = "blocks.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = torch.relu(self = %0) {layer = "blocks.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = torch.neg(self = %1) {layer = "blocks.1"} : (tensor<4xf32>) -> tensor<4xf32>
  %3 = torch.relu(self = %2) {layer = "blocks.1"} : (tensor<4xf32>) -> tensor<4xf32>
  %4 = torch.mul.Tensor(self = %t, other = %3) {layer = "readers.0"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %5 = torch.exp(self = %4) {layer = "readers.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %6 = torch.mul.Tensor(self = %5, other = %3) {layer = "readers.1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %7 = torch.exp(self = %6) {layer = "readers.1"} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %7 : tensor<4xf32>
}
