// RUN: %roundtrip

// CHECK-LABEL: func.func private @step
func.func private @step(%h: tensor<4x8xf32>, %c: tensor<4xi64>, %x: tensor<4x8xf32>, %w: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<4xi64>) {
  func.return %h, %c : tensor<4x8xf32>, tensor<4xi64>
}
func.func private @count(%c: tensor<i64>) -> tensor<i64> {
  func.return %c : tensor<i64>
}
// CHECK-LABEL: func.func @main
func.func @main(%h0: tensor<4x8xf32>, %c0: tensor<4xi64>, %x: tensor<5x4x8xf32>, %w: tensor<8xf32>, %n: tensor<i64>) -> (tensor<5x4x8xf32>) {
  // CHECK: %h, %c = tensor.scan @step 5 carry(%h0, %c0 : tensor<4x8xf32>, tensor<4xi64>) each(%x : tensor<5x4x8xf32>) with(%w : tensor<8xf32>) history [0] -> tensor<5x4x8xf32>, tensor<4xi64>
  %h, %c = tensor.scan @step 5 carry(%h0, %c0 : tensor<4x8xf32>, tensor<4xi64>) each(%x : tensor<5x4x8xf32>) with(%w : tensor<8xf32>) history [0] -> tensor<5x4x8xf32>, tensor<4xi64>
  // CHECK-NEXT: %m = tensor.scan @count 7 carry(%n : tensor<i64>) {note = 1 : i64} -> tensor<i64>
  %m = tensor.scan @count 7 carry(%n : tensor<i64>) {note = 1 : i64} -> tensor<i64>
  func.return %h : tensor<5x4x8xf32>
}
