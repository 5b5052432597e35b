// RUN: dl-opt %s --split-input-file --verify-diagnostics -p tensor-emulate-float8,cse,dce | filecheck %s

// A conversion to f32 is arithmetic on the byte: sign, exponent and mantissa.
// CHECK-LABEL: func.func @main(%x: tensor<4xui8>) -> tensor<4xf32> {
// CHECK-NEXT: %{{.*}} = payload.cast %x : tensor<4xui8> -> tensor<4xi32>
// CHECK-NOT: f8E
func.func @main(%x: tensor<4xf8E5M2>) -> tensor<4xf32> {
  %y = payload.cast %x : tensor<4xf8E5M2> -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

// A conversion from f32 rounds to nearest even; moves stay, on bytes; constants are encoded here.
// CHECK-LABEL: func.func @main(%x: tensor<4xf32>) -> tensor<6xui8> {
// CHECK: math.roundeven
// CHECK: %[[Y:.*]] = payload.cast %{{.*}} : tensor<4xi32> -> tensor<4xui8>
// CHECK: %[[ONE:.*]] = payload.constant 56 : ui8
// CHECK: tensor.index_map %[[Y]]{{.*}} else %[[ONE]]{{.*}} tensor<4xui8> -> tensor<6xui8>
func.func @main(%x: tensor<4xf32>) -> tensor<6xf8E4M3FN> {
  %y = payload.cast %x : tensor<4xf32> -> tensor<4xf8E4M3FN>
  %one = payload.constant 1.0 : f32
  %fill = payload.cast %one : f32 -> f8E4M3FN
  %z = tensor.index_map %y[d0] where 0 <= d0 < 4 else %fill : tensor<4xf8E4M3FN> -> tensor<6xf8E4M3FN>
  func.return %z : tensor<6xf8E4M3FN>
}

// -----

// CHECK: payload.cmp: computes on f8E5M2, which is for storage only; convert its operands to float32 first
func.func @main(%x: tensor<4xf8E5M2>) -> tensor<4xi1> {
  %y = payload.cmp eq %x, %x : tensor<4xf8E5M2>
  func.return %y : tensor<4xi1>
}

// -----

// CHECK: payload.cast: expected a conversion between an eight-bit float and f32, but got tensor<4xf8E5M2> to tensor<4xi32>
func.func @main(%x: tensor<4xf8E5M2>) -> tensor<4xi32> {
  %y = payload.cast %x : tensor<4xf8E5M2> -> tensor<4xi32>
  func.return %y : tensor<4xi32>
}
