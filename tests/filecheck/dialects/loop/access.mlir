// RUN: %roundtrip

// Coordinates are written with as few parentheses as read clearly; what is subtracted has no negative factor.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<16x64xf32>, %t: tensor<100x8xf32>, %n: tensor<16xi64>) -> tensor<16x4xf32> {
  // CHECK: %y = loop.nest (%i, %j) in [16, 4] to [%i, %j] -> tensor<16x4xf32> {
  %y = loop.nest (%i, %j) in [16, 4] to [%i, %j] -> tensor<16x4xf32> {
    %zero = payload.constant 0.0 : f32
    %m = loop.load %n[%i] : tensor<16xi64>
    %s = payload.cast %m : i64 -> index
    // CHECK: %a = loop.load %x[%i, %j * 3 + 4 - %i] : tensor<16x64xf32>
    %a = loop.load %x[%i, ((%j * 3) + 4) + %i * -1] : tensor<16x64xf32>
    // CHECK-NEXT: %b = loop.load %x[(%i * 4 + %j) floordiv 8, 63 - (%i * 4 + %j) mod 8] : tensor<16x64xf32>
    %b = loop.load %x[(%i * 4 + %j) floordiv 8, (%i * 4 + %j) mod 8 * -1 + 63] : tensor<16x64xf32>
    // A value that is computed from data is a symbol.
    // CHECK-NEXT: %c = loop.load %t[symbol(%s), %j] where 0 <= symbol(%s) < 100 and -1 <= %j - 2 < 8 else %zero : tensor<100x8xf32>
    %c = loop.load %t[symbol(%s), %j] where 0 <= symbol(%s) < 100 and -1 <= %j + -2 < 8 else %zero : tensor<100x8xf32>
    // CHECK-NEXT: %d = loop.load %x[0, 3] where true else %zero : tensor<16x64xf32>
    %d = loop.load %x[0, 3] where true else %zero : tensor<16x64xf32>
    %e = arith.addf %a, %b : f32
    %f = arith.addf %e, %c : f32
    %g = arith.addf %f, %d : f32
    loop.yield %g : f32
  }
  func.return %y : tensor<16x4xf32>
}

// -----

// An op with other operands than its text names: one that the map does not use, and one twice. What is read back has
// each once, in the order of their definitions.
// CHECK-LABEL: func.func @other
func.func @other(%x: tensor<16x64xf32>) -> tensor<16x64xf32> {
  %y = loop.nest (%i, %j) in [16, 64] -> tensor<16x64xf32> {
    // CHECK: %a = loop.load %x[%i, %j + %i - %i] : tensor<16x64xf32>
    %a = "loop.load"(%x, %j, %i, %i) <{map = affine_map<(d0, d1, d2) -> (d1, ((d0 + d2) + (d1 * -1)))>, operandSegmentSizes = array<i32: 1, 3, 0, 0>}> : (tensor<16x64xf32>, index, index, index) -> f32
    // CHECK-NEXT: %b = loop.load %x[%i, 0] : tensor<16x64xf32>
    %b = "loop.load"(%x, %j, %i) <{map = affine_map<(d0, d1) -> (d1, 0)>, operandSegmentSizes = array<i32: 1, 2, 0, 0>}> : (tensor<16x64xf32>, index, index) -> f32
    %c = arith.addf %a, %b : f32
    loop.yield %c : f32
  }
  func.return %y : tensor<16x64xf32>
}
