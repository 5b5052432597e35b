// RUN: dl-opt %s -p "tensor-plan-fusion{strategy=simple}" --split-input-file | filecheck %s

// A product with an epilogue is one kernel; a bias in front of it is cheap to add again for each column.
// CHECK-LABEL: @epilogue
func.func @epilogue(%x: tensor<16x64xf32>, %b: tensor<64xf32>, %w: tensor<64x32xf32>) -> tensor<16x32xf32> {
  %r = tensor.index_map %b[d1] : tensor<64xf32> -> tensor<16x64xf32>
  // CHECK: arith.addf %x, %r : tensor<16x64xf32>
  %a = arith.addf %x, %r : tensor<16x64xf32>
  %l = tensor.index_map %a[d0, d2] : tensor<16x64xf32> -> tensor<16x32x64xf32>
  %m = tensor.index_map %w[d2, d1] : tensor<64x32xf32> -> tensor<16x32x64xf32>
  %p = arith.mulf %l, %m : tensor<16x32x64xf32>
  // CHECK: tensor.reduce add %p over [2] :
  %s = tensor.reduce add %p over [2] : tensor<16x32x64xf32> -> tensor<16x32xf32>
  %zero = payload.constant 0.0 : tensor<16x32xf32>
  // CHECK: arith.maximumf %s, %zero {fuse.root} :
  %y = arith.maximumf %s, %zero : tensor<16x32xf32>
  func.return %y : tensor<16x32xf32>
}

// -----

// A sum that is read along another index, or by another sum, is kept.
// CHECK-LABEL: @sums
func.func @sums(%x: tensor<16x64xf32>) -> (tensor<16x64xf32>, tensor<f32>) {
  // CHECK: tensor.reduce add %x over [1] {fuse.root} :
  %s = tensor.reduce add %x over [1] : tensor<16x64xf32> -> tensor<16xf32>
  %r = tensor.index_map %s[d0] : tensor<16xf32> -> tensor<16x64xf32>
  // CHECK: arith.subf %x, %r {fuse.root} :
  %y = arith.subf %x, %r : tensor<16x64xf32>
  // CHECK: tensor.reduce max %x over [1] {fuse.root} :
  %m = tensor.reduce max %x over [1] : tensor<16x64xf32> -> tensor<16xf32>
  // CHECK: tensor.reduce add %m over [0] {fuse.root} :
  %t = tensor.reduce add %m over [0] : tensor<16xf32> -> tensor<f32>
  func.return %y, %t : tensor<16x64xf32>, tensor<f32>
}

// -----

// What takes more than four operations is kept where it is read twice, and computed where it is read once.
// CHECK-LABEL: @often
func.func @often(%x: tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
  %a = math.exp %x : tensor<64xf32>
  %b = math.exp %a : tensor<64xf32>
  %c = math.exp %b : tensor<64xf32>
  // CHECK: math.exp %c : tensor<64xf32>
  %d = math.exp %c : tensor<64xf32>
  // CHECK: math.exp %d {fuse.root} : tensor<64xf32>
  %e = math.exp %d : tensor<64xf32>
  %f = math.sin %e : tensor<64xf32>
  %g = math.cos %f : tensor<64xf32>
  %h = math.cos %g : tensor<64xf32>
  %k = math.cos %h : tensor<64xf32>
  // CHECK: math.cos %k : tensor<64xf32>
  %l = math.cos %k : tensor<64xf32>
  // CHECK: math.cos %l {fuse.root} : tensor<64xf32>
  %y = math.cos %l : tensor<64xf32>
  // CHECK: math.cos %e {fuse.root} : tensor<64xf32>
  %z = math.cos %e : tensor<64xf32>
  func.return %y, %z : tensor<64xf32>, tensor<64xf32>
}
