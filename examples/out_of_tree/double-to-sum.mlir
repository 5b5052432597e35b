// RUN: dl-opt %s -p double-to-sum,dce | filecheck %s
// RUN: dl-opt %s -p reduce-strength | filecheck %s
// RUN: dl-opt %s -p 'double-to-sum{doublings=2},dce' | filecheck %s --check-prefix=TWICE

// CHECK-LABEL: func.func @double
// CHECK-NEXT:    %[[Y:.*]] = arith.addf %x, %x : tensor<4xf32>
// CHECK-NEXT:    func.return %[[Y]]
func.func @double(%x: tensor<4xf32>) -> tensor<4xf32> {
  %two = payload.constant 2.0 : tensor<4xf32>
  %y = arith.mulf %x, %two : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// TWICE-LABEL: func.func @quadruple
// TWICE-NEXT:    %[[X:.*]] = arith.addf %x, %x : f32
// TWICE-NEXT:    %[[Y:.*]] = arith.addf %[[X]], %[[X]] : f32
// TWICE-NEXT:    func.return %[[Y]]
// CHECK-LABEL: func.func @quadruple
// CHECK:         arith.mulf
func.func @quadruple(%x: f32) -> f32 {
  %four = payload.constant 4.0 : f32
  %y = arith.mulf %x, %four : f32
  func.return %y : f32
}
