// judged: returns the maximum
// RUN: dl-opt %s --load %S/operation.py -p lower-mine | filecheck %s

// CHECK-LABEL: func.func @f32
// CHECK: arith.maximumf
func.func @f32(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = mine.squared_relu %x : tensor<4xf32>
  func.return %y : tensor<4xf32>
}
