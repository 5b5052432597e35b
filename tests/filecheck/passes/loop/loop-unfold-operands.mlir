// RUN: dl-opt %s -p loop-unfold-operands,cse,dce --split-input-file | filecheck %s
// RUN: %check_each %s -p loop-unfold-operands,cse,dce --split-input-file

// A convolution whose pixels are the columns: the window comes first, the pixels last. Weights are one long row then, and
// images one long row as well, also where their sides are powers of two.
func.func @main(%x: tensor<6x4x4xf32>, %w: tensor<5x6x3x3xf32>, %b: tensor<5xf32>) -> tensor<5x4x4xf32> {
  // CHECK:      [[P:%x_unfolded]] = loop.nest (%[[K:.*]], %[[R:.*]], %[[S:.*]], %[[I:.*]], %[[J:.*]]) in [6, 3, 3, 4, 4] -> tensor<6x3x3x4x4xf32> {
  // CHECK:        loop.load %x[%[[K]], %[[I]] + %[[R]] - 1, %[[J]] + %[[S]] - 1]
  // CHECK-SAME:     where 0 <= %[[I]] + %[[R]] - 1 < 4 and 0 <= %[[J]] + %[[S]] - 1 < 4 else %{{.*}} : tensor<6x4x4xf32>
  // CHECK:      %y = loop.nest (%o, %ij) in [5, 16] -> tensor<5x16xf32> {
  // CHECK:        loop.reduce add (%krs) in [54] -> f32 {
  // CHECK-NEXT:     loop.load %{{.*}}[%krs, %ij] : tensor<54x16xf32>
  // CHECK-NEXT:     loop.load %{{.*}}[%o, %krs] : tensor<5x54xf32>
  // CHECK:        loop.load %b[%o]
  %y = loop.nest (%o, %i, %j) in [5, 4, 4] -> tensor<5x4x4xf32> {
    %zero = payload.constant 0.0 : f32
    %s = loop.reduce add (%k, %r, %s) in [6, 3, 3] -> f32 {
      %a = loop.load %x[%k, %i + %r - 1, %j + %s - 1] where 0 <= %i + %r - 1 < 4 and 0 <= %j + %s - 1 < 4 else %zero {unfold} : tensor<6x4x4xf32>
      %v = loop.load %w[%o, %k, %r, %s] : tensor<5x6x3x3xf32>
      %p = arith.mulf %a, %v : f32
      loop.yield %p : f32
    }
    %c = loop.load %b[%o] : tensor<5xf32>
    %t = arith.addf %s, %c : f32
    loop.yield %t : f32
  }
  func.return %y : tensor<5x4x4xf32>
}

// -----

// Pixels as rows, with a stride: the window comes last. The batch and the pixels follow one another.
func.func @main(%x: tensor<2x9x6xf32>, %w: tensor<3x6x5xf32>) -> tensor<2x4x5xf32> {
  // CHECK:      [[P:%x_unfolded]] = loop.nest (%[[N:.*]], %[[I:.*]], %[[R:.*]], %[[K:.*]]) in [2, 4, 3, 6] -> tensor<2x4x3x6xf32> {
  // CHECK-NEXT:   loop.load %x[%[[N]], %[[I]] * 2 + %[[R]], %[[K]]]
  // CHECK:      loop.nest (%ni, %o) in [8, 5] -> tensor<8x5xf32> {
  // CHECK-NEXT:   loop.reduce add (%rk) in [18] -> f32 {
  // CHECK-NEXT:     loop.load %{{.*}}[%ni, %rk] : tensor<8x18xf32>
  // CHECK-NEXT:     loop.load %{{.*}}[%rk, %o] : tensor<18x5xf32>
  %y = loop.nest (%n, %i, %o) in [2, 4, 5] -> tensor<2x4x5xf32> {
    %s = loop.reduce add (%r, %k) in [3, 6] -> f32 {
      %a = loop.load %x[%n, %i * 2 + %r, %k] {unfold} : tensor<2x9x6xf32>
      %v = loop.load %w[%r, %k, %o] : tensor<3x6x5xf32>
      %p = arith.mulf %a, %v : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<2x4x5xf32>
}
