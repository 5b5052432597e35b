// RUN: dl-opt %s --split-input-file --verify-diagnostics -p 'verify-level{level=tensor}' | filecheck %s

// A program at the level passes unchanged.

// CHECK-LABEL: func.func @legal
// CHECK:         arith.addf %{{.*}}, %{{.*}} : tensor<4xf32>
func.func @legal(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %x, %x : tensor<4xf32>
  func.return %0 : tensor<4xf32>
}

// -----

// Ops of another level, each reported at its place.

// CHECK:      verify-level.mlir:21:3: error: scf.for: not legal at the tensor level
// CHECK-NEXT:   scf.for %i = %n to %n step %n {
// CHECK-NEXT: {{^  \^$}}
// CHECK-NEXT: verify-level.mlir:22:5: error: scf.yield: not legal at the tensor level
func.func @other_level(%n: index) {
  scf.for %i = %n to %n step %n {
    scf.yield
  }
  func.return
}

// -----

// Narrow floats are stored, not computed with.

// CHECK: verify-level.mlir:33:3: error: arith.mulf: computes in bf16 at the tensor level; convert to f32 first
func.func @narrow(%x: tensor<4xbf16>) -> tensor<4xbf16> {
  %0 = arith.mulf %x, %x : tensor<4xbf16>
  func.return %0 : tensor<4xbf16>
}

// -----

// Upstream ops that ours replace.

// CHECK: error: arith.select: not legal at the tensor level, use payload.select
func.func @replaced(%c: i1, %x: f32) -> f32 {
  %0 = arith.select %c, %x, %x : f32
  func.return %0 : f32
}

// -----

// SSA dominance is checked with or without the pass.

// CHECK: error: arith.addf: operand #0 (%b) is used before it is defined
func.func @order(%x: f32) -> f32 {
  %a = arith.addf %b, %x : f32
  %b = arith.addf %x, %x : f32
  func.return %a : f32
}

// -----

// Every extent is a number.

// CHECK: error: arith.addf: an extent known only at run time needs a symbol, #payload.extents<...>
func.func @dynamic(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %0 = arith.addf %x, %x : tensor<?x4xf32>
  func.return %0 : tensor<?x4xf32>
}
