// judged: the test must pass on the right pass, but it fails
// RUN: dl-opt %s --load %S/plus_zero.py -p fold-plus-zero,dce | filecheck %s

// CHECK-LABEL: func.func @minus_zero_right
// CHECK-NEXT:    func.return %x
func.func @minus_zero_right(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = payload.constant -0.0 : tensor<4xf32>
  %y = arith.addf %x, %zero : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// CHECK-LABEL: func.func @minus_zero_left
// CHECK-NEXT:    func.return %x
func.func @minus_zero_left(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = payload.constant -0.0 : tensor<4xf32>
  %y = arith.addf %zero, %x : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// CHECK-LABEL: func.func @difference
// CHECK-NEXT:    func.return %x
func.func @difference(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = payload.constant 0.0 : tensor<4xf32>
  %y = arith.subf %x, %zero : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// CHECK-LABEL: func.func @zero_right
// CHECK-NEXT:    func.return %x
func.func @zero_right(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = payload.constant 0.0 : tensor<4xf32>
  %y = arith.addf %x, %zero : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// CHECK-LABEL: func.func @negation
// CHECK:         arith.subf %zero, %x
func.func @negation(%x: tensor<4xf32>) -> tensor<4xf32> {
  %zero = payload.constant 0.0 : tensor<4xf32>
  %y = arith.subf %zero, %x : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
