// RUN: dl-opt %s -p double-to-sum,dce | filecheck %s
// RUN: dl-opt %s -p reduce-strength | filecheck %s

// CHECK-LABEL: func.func @double
// CHECK-NEXT:    %[[Y:.*]] = arith.addf %x, %x : tensor<4xf32>
// CHECK-NEXT:    func.return %[[Y]]
func.func @double(%x: tensor<4xf32>) -> tensor<4xf32> {
  %two = payload.constant 2.0 : tensor<4xf32>
  %y = arith.mulf %x, %two : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// CHECK-LABEL: func.func @triple
// CHECK:         arith.mulf
func.func @triple(%x: f32) -> f32 {
  %three = payload.constant 3.0 : f32
  %y = arith.mulf %x, %three : f32
  func.return %y : f32
}
