// RUN: dl-opt %s -p tensor-plan-fusion | filecheck %s
// RUN: dl-opt %s -p "tensor-plan-fusion{strategy=none}" | filecheck %s --check-prefix NONE
// RUN: dl-opt %s -p "tensor-plan-fusion{strategy=all}" | filecheck %s --check-prefix ALL
// RUN: dl-opt %s -p "tensor-plan-fusion{strategy=keep}" | filecheck %s --check-prefix KEEP
// RUN: dl-opt %s -p "tensor-plan-fusion{target=cpu}" | filecheck %s --check-prefix CPU

// A sum over everything is a kernel of its own, and so is the first of two matrix products; scaling, bias and the
// activation are part of the products. The user's mark in the middle survives only where it is kept. Cores take long for
// divisions, which each tile of the product would do again: there they are a kernel of their own.
func.func @main(%x: tensor<512x512xf32>, %w: tensor<512x512xf32>, %bias: tensor<512xf32>) -> tensor<512x512xf32> {
  // CHECK: tensor.reduce add %x over [0, 1] {fuse.root} :
  // NONE: tensor.reduce add %x over [0, 1] {fuse.root} :
  // ALL: tensor.reduce add %x over [0, 1] :
  // KEEP: tensor.reduce add %x over [0, 1] :
  %total = tensor.reduce add %x over [0, 1] : tensor<512x512xf32> -> tensor<f32>
  // NONE: tensor.index_map %total[{{[^{}]*}}] :
  %b = tensor.index_map %total[] : tensor<f32> -> tensor<512x512xf32>
  // CHECK: arith.divf %x, %b :
  // NONE: arith.divf %x, %b {fuse.root} :
  // ALL: arith.divf %x, %b :
  // KEEP: arith.divf %x, %b {fuse.root} :
  // CPU: arith.divf %x, %b {fuse.root} :
  %s = arith.divf %x, %b {fuse.root} : tensor<512x512xf32>
  %l = tensor.index_map %s[d0, d2] : tensor<512x512xf32> -> tensor<512x512x512xf32>
  %r = tensor.index_map %w[d2, d1] : tensor<512x512xf32> -> tensor<512x512x512xf32>
  // CHECK: arith.mulf %l, %r :
  // NONE: arith.mulf %l, %r {fuse.root} :
  // KEEP: arith.mulf %l, %r :
  // CPU: arith.mulf %l, %r :
  %p = arith.mulf %l, %r : tensor<512x512x512xf32>
  // CHECK: tensor.reduce add %p over [2] :
  // NONE: tensor.reduce add %p over [2] {fuse.root} :
  %m = tensor.reduce add %p over [2] : tensor<512x512x512xf32> -> tensor<512x512xf32>
  %bb = tensor.index_map %bias[d1] : tensor<512xf32> -> tensor<512x512xf32>
  // CHECK: arith.addf %m, %bb :
  // NONE: arith.addf %m, %bb {fuse.root} :
  %a = arith.addf %m, %bb : tensor<512x512xf32>
  // NONE: payload.constant 0.000000e+00 : tensor
  %zero = payload.constant 0.0 : tensor<512x512xf32>
  // CHECK: arith.maximumf %a, %zero {fuse.root} :
  // NONE: arith.maximumf %a, %zero {fuse.root} :
  // ALL: arith.maximumf %a, %zero :
  %h = arith.maximumf %a, %zero : tensor<512x512xf32>
  %l2 = tensor.index_map %h[d0, d2] : tensor<512x512xf32> -> tensor<512x512x512xf32>
  %q = arith.mulf %l2, %r : tensor<512x512x512xf32>
  // CHECK: tensor.reduce add %q over [2] {fuse.root} :
  // NONE: tensor.reduce add %q over [2] {fuse.root} :
  // ALL: tensor.reduce add %q over [2] {fuse.root} :
  // KEEP: tensor.reduce add %q over [2] :
  %y = tensor.reduce add %q over [2] : tensor<512x512x512xf32> -> tensor<512x512xf32>
  func.return %y : tensor<512x512xf32>
}
