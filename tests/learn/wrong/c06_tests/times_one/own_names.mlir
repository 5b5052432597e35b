// judged: fails: 6_1_times_one.mlir:5: error: Couldn
// RUN: dl-opt %s --load %S/times_one.py -p fold-times-one,dce | filecheck %s

// CHECK-LABEL: func.func @right
// CHECK-NEXT:    func.return %y
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

// CHECK-LABEL: func.func @two
// CHECK:         %[[Y:.*]] = arith.mulf %x, %two
// CHECK-NEXT:    func.return %[[Y]]
func.func @two(%x: tensor<4xf32>) -> tensor<4xf32> {
  %two = payload.constant 2.0 : tensor<4xf32>
  %y = arith.mulf %x, %two : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
