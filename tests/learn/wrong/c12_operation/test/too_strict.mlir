// judged: the test must pass on the right pass
// RUN: dl-opt %s --load %S/operation.py -p lower-mine | filecheck %s

// CHECK-LABEL: func.func @f32
// CHECK-NEXT: arith.constant
// CHECK-NEXT: %[[zero:[a-z0-9_]+]] = payload.constant 0.000000e+00 : tensor<4xf32>
// CHECK-NEXT: %[[max:[a-z0-9_]+]] = arith.maximumf %x, %[[zero]] : tensor<4xf32>
// CHECK-NEXT: %[[square:[a-z0-9_]+]] = arith.mulf %[[max]], %[[max]] : tensor<4xf32>
// CHECK-NEXT: func.return %[[square]]
func.func @f32(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = mine.squared_relu %x : tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// CHECK-LABEL: func.func @f16
// CHECK-NOT: mine.squared_relu
// CHECK: arith.mulf {{.*}} : tensor<4xf16>
func.func @f16(%x: tensor<4xf16>) -> tensor<4xf16> {
  %y = mine.squared_relu %x : tensor<4xf16>
  func.return %y : tensor<4xf16>
}
