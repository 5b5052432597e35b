// RUN: dl-opt %s -p loop-unfold-operands,cse,dce --split-input-file | filecheck %s
// RUN: %check_each %s -p loop-unfold-operands,cse,dce --split-input-file

// A convolution whose pixels are the columns: the window comes first, the pixels last. Weights are one long row then, and
// images one long row as well, also where their sides are powers of two.
func.func @main(%x: tensor<6x4x4xf32>, %w: tensor<5x6x3x3xf32>, %b: tensor<5xf32>) -> tensor<5x4x4xf32> {
  // CHECK:      [[P:%x_unfolded]] = loop.nest ({{.*}}) in [6, 3, 3, 4, 4] -> tensor<6x3x3x4x4xf32> {
  // CHECK:        loop.load %x[affine_map<(d0, d1, d2, d3, d4) -> (d0, ((d3 + d1) + -1), ((d4 + d2) + -1))>]
  // CHECK-SAME:     in [0:4, 0:4]> else %{{.*}} : tensor<6x4x4xf32>
  // CHECK:      %y = loop.nest (%o, %ij) in [5, 16] -> tensor<5x16xf32> {
  // CHECK:        loop.reduce add (%krs) in [54] -> f32 {
  // CHECK-NEXT:     loop.load %{{.*}}[affine_map<(d0, d1) -> (d0, d1)>](%krs, %ij) : tensor<54x16xf32>
  // CHECK-NEXT:     loop.load %{{.*}}[affine_map<(d0, d1) -> (d0, d1)>](%o, %krs) : tensor<5x54xf32>
  // CHECK:        loop.load %b[affine_map<(d0) -> (d0)>](%o)
  %y = loop.nest (%o, %i, %j) in [5, 4, 4] -> tensor<5x4x4xf32> {
    %zero = payload.constant 0.0 : f32
    %s = loop.reduce add (%k, %r, %s) in [6, 3, 3] -> f32 {
      %a = loop.load %x[affine_map<(d0, d1, d2, d3, d4) -> (d2, d0 + d3 - 1, d1 + d4 - 1)>](%i, %j, %k, %r, %s) where <affine_map<(d0, d1, d2, d3, d4) -> (d0 + d3 - 1, d1 + d4 - 1)> in [0:4, 0:4]> else %zero {unfold} : tensor<6x4x4xf32>
      %v = loop.load %w[affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>](%o, %k, %r, %s) : tensor<5x6x3x3xf32>
      %p = arith.mulf %a, %v : f32
      loop.yield %p : f32
    }
    %c = loop.load %b[affine_map<(d0) -> (d0)>](%o) : tensor<5xf32>
    %t = arith.addf %s, %c : f32
    loop.yield %t : f32
  }
  func.return %y : tensor<5x4x4xf32>
}

// -----

// Pixels as rows, with a stride: the window comes last. The batch and the pixels follow one another.
func.func @main(%x: tensor<2x9x6xf32>, %w: tensor<3x6x5xf32>) -> tensor<2x4x5xf32> {
  // CHECK:      [[P:%x_unfolded]] = loop.nest ({{.*}}) in [2, 4, 3, 6] -> tensor<2x4x3x6xf32> {
  // CHECK-NEXT:   loop.load %x[affine_map<(d0, d1, d2, d3) -> (d0, ((d1 * 2) + d2), d3)>]
  // CHECK:      loop.nest (%ni, %o) in [8, 5] -> tensor<8x5xf32> {
  // CHECK-NEXT:   loop.reduce add (%rk) in [18] -> f32 {
  // CHECK-NEXT:     loop.load %{{.*}}[affine_map<(d0, d1) -> (d0, d1)>](%ni, %rk) : tensor<8x18xf32>
  // CHECK-NEXT:     loop.load %{{.*}}[affine_map<(d0, d1) -> (d1, d0)>](%o, %rk) : tensor<18x5xf32>
  %y = loop.nest (%n, %i, %o) in [2, 4, 5] -> tensor<2x4x5xf32> {
    %s = loop.reduce add (%r, %k) in [3, 6] -> f32 {
      %a = loop.load %x[affine_map<(d0, d1, d2, d3) -> (d0, d1 * 2 + d2, d3)>](%n, %i, %r, %k) {unfold} : tensor<2x9x6xf32>
      %v = loop.load %w[affine_map<(d0, d1, d2) -> (d1, d2, d0)>](%o, %r, %k) : tensor<3x6x5xf32>
      %p = arith.mulf %a, %v : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<2x4x5xf32>
}
