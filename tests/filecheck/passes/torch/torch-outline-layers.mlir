// RUN: dl-opt %s -p "torch-outline-layers{min_ops=2}" --split-input-file | filecheck %s

// Two equal layers, one after the other, with weights of their own; the third has another shape of weight.
// CHECK-LABEL: func.func private @layer(%x: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> {
// CHECK-NEXT: %[[A:.*]] = torch.mul.Tensor(self = %x, other = %w)
// CHECK-NEXT: %[[B:.*]] = torch.relu(self = %[[A]])
// CHECK-NEXT: func.return %[[B]]
// CHECK-LABEL: func.func @main
// CHECK-NEXT: %[[A:.*]] = func.call @layer(%x, %w)
// CHECK-NEXT: %[[B:.*]] = func.call @layer(%[[A]], %v)
// CHECK-NEXT: %[[C:.*]] = torch.mul.Tensor(self = %[[B]], other = %u)
// CHECK-NEXT: %[[D:.*]] = torch.relu(self = %[[C]])
// CHECK-NEXT: func.return %[[D]]
// CHECK-NOT: layers.
func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32>, %v: tensor<4xf32>, %u: tensor<1xf32>) -> tensor<4xf32> {
  %0 = torch.mul.Tensor(self = %x, other = %w) {layer = "layers.0"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = torch.relu(self = %0) {layer = "layers.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = torch.mul.Tensor(self = %1, other = %v) {layer = "layers.1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = torch.relu(self = %2) {layer = "layers.1"} : (tensor<4xf32>) -> tensor<4xf32>
  %4 = torch.mul.Tensor(self = %3, other = %u) {layer = "layers.2"} : (tensor<4xf32>, tensor<1xf32>) -> tensor<4xf32>
  %5 = torch.relu(self = %4) {layer = "layers.2"} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %5 : tensor<4xf32>
}

// -----

// Equal ops, but one layer reads its input twice where the other reads two: nothing is equal.
// CHECK-NOT: func.call
func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> {
  %0 = torch.mul.Tensor(self = %x, other = %w) {layer = "layers.0"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = torch.relu(self = %0) {layer = "layers.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = torch.mul.Tensor(self = %1, other = %1) {layer = "layers.1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = torch.relu(self = %2) {layer = "layers.1"} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %3 : tensor<4xf32>
}

// -----

// A value inside the first layer is used behind it, which makes it another kind of layer than the second.
// CHECK-NOT: func.call
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = torch.neg(self = %x) {layer = "layers.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = torch.relu(self = %0) {layer = "layers.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = torch.neg(self = %1) {layer = "layers.1"} : (tensor<4xf32>) -> tensor<4xf32>
  %3 = torch.relu(self = %2) {layer = "layers.1"} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %3, %0 : tensor<4xf32>, tensor<4xf32>
}

// -----

// Nothing is marked: repeats are found, and cut where the fewest values cross.
// CHECK-LABEL: func.func private @layer(
// CHECK-LABEL: func.func @main
// CHECK: torch.neg
// CHECK-COUNT-3: func.call @layer
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = torch.neg(self = %x) : (tensor<4xf32>) -> tensor<4xf32>
  %a0 = torch.relu(self = %0) : (tensor<4xf32>) -> tensor<4xf32>
  %a1 = torch.exp(self = %a0) : (tensor<4xf32>) -> tensor<4xf32>
  %a2 = torch.sin(self = %a0) : (tensor<4xf32>) -> tensor<4xf32>
  %a3 = torch.mul.Tensor(self = %a1, other = %a2) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %b0 = torch.relu(self = %a3) : (tensor<4xf32>) -> tensor<4xf32>
  %b1 = torch.exp(self = %b0) : (tensor<4xf32>) -> tensor<4xf32>
  %b2 = torch.sin(self = %b0) : (tensor<4xf32>) -> tensor<4xf32>
  %b3 = torch.mul.Tensor(self = %b1, other = %b2) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c0 = torch.relu(self = %b3) : (tensor<4xf32>) -> tensor<4xf32>
  %c1 = torch.exp(self = %c0) : (tensor<4xf32>) -> tensor<4xf32>
  %c2 = torch.sin(self = %c0) : (tensor<4xf32>) -> tensor<4xf32>
  %c3 = torch.mul.Tensor(self = %c1, other = %c2) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %c3 : tensor<4xf32>
}

// -----

// What is constant in every call of the layer is constant in it; %b is in one only.
// CHECK-LABEL: func.func private @layer(%x: tensor<4xf32>, %w: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> attributes {constants = array<i64: 1>} {
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32>, %b: tensor<4xf32>, %v: tensor<4xf32>, %c: tensor<4xf32>)
    -> tensor<4xf32> attributes {constants = array<i64: 1, 2, 3>} {
  %0 = torch.mul.Tensor(self = %x, other = %w) {layer = "layers.0"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = torch.mul.Tensor(self = %0, other = %b) {layer = "layers.0"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = torch.mul.Tensor(self = %1, other = %v) {layer = "layers.1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = torch.mul.Tensor(self = %2, other = %c) {layer = "layers.1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %3 : tensor<4xf32>
}

// -----

// Two kinds: each part of the second kind reads the result of the first kind's last part.
// CHECK-LABEL: func.func private @layer(
// CHECK-LABEL: func.func private @layer_1(
// CHECK-LABEL: func.func @main
// CHECK-NEXT: %[[A:.*]] = func.call @layer(%x)
// CHECK-NEXT: %[[B:.*]] = func.call @layer(%[[A]])
// CHECK-NEXT: %[[C:.*]] = func.call @layer_1(%t, %[[B]])
// CHECK-NEXT: %[[D:.*]] = func.call @layer_1(%[[C]], %[[B]])
// CHECK-NEXT: func.return %[[D]]
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

// -----

// Two kinds in turns: each part of one reads a part of the other.
// CHECK-LABEL: func.func @main
// CHECK-NEXT: %[[A:.*]] = func.call @layer(%x)
// CHECK-NEXT: %[[B:.*]] = func.call @layer_1(%[[A]], %x)
// CHECK-NEXT: %[[C:.*]] = func.call @layer(%[[B]])
// CHECK-NEXT: %[[D:.*]] = func.call @layer_1(%[[C]], %[[A]])
// CHECK-NEXT: func.return %[[D]]
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = torch.neg(self = %x) {layer = "blocks.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = torch.relu(self = %0) {layer = "blocks.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %2 = torch.mul.Tensor(self = %1, other = %x) {layer = "others.0"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = torch.exp(self = %2) {layer = "others.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %4 = torch.neg(self = %3) {layer = "blocks.1"} : (tensor<4xf32>) -> tensor<4xf32>
  %5 = torch.relu(self = %4) {layer = "blocks.1"} : (tensor<4xf32>) -> tensor<4xf32>
  %6 = torch.mul.Tensor(self = %5, other = %1) {layer = "others.1"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %7 = torch.exp(self = %6) {layer = "others.1"} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %7 : tensor<4xf32>
}
