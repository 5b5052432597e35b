// RUN: dl-opt %s -p tensor-plan-fusion | filecheck %s

// Every block of the matmul would compute the scaled rows again, with the sums that they are scaled by, chunk by chunk.
// The smallest tensor that an operand is made of by conversions is kept: %n in 16 bits. Weights that take fewer bytes
// in memory than as an operand are converted in the matmul.
func.func @main(%x: tensor<32x2048xbf16>, %w: tensor<2048x2048xi8>) -> tensor<32x2048xbf16> {
  %f = payload.cast %x : tensor<32x2048xbf16> -> tensor<32x2048xf32>
  %q = arith.mulf %f, %f : tensor<32x2048xf32>
  // CHECK: tensor.reduce add %q over [1] :
  %s = tensor.reduce add %q over [1] : tensor<32x2048xf32> -> tensor<32xf32>
  %r = math.rsqrt %s : tensor<32xf32>
  %b = tensor.index_map %r[d0] : tensor<32xf32> -> tensor<32x2048xf32>
  // CHECK: arith.mulf %f, %b :
  %m = arith.mulf %f, %b : tensor<32x2048xf32>
  // CHECK: %n = payload.cast %m {fuse.root} :
  %n = payload.cast %m : tensor<32x2048xf32> -> tensor<32x2048xbf16>
  // CHECK: payload.cast %n :
  %a = payload.cast %n : tensor<32x2048xbf16> -> tensor<32x2048xf32>
  %l = tensor.index_map %a[d0, d2] : tensor<32x2048xf32> -> tensor<32x2048x2048xf32>
  // CHECK: payload.cast %w :
  %h = payload.cast %w : tensor<2048x2048xi8> -> tensor<2048x2048xbf16>
  // CHECK: payload.cast %h :
  %v = payload.cast %h : tensor<2048x2048xbf16> -> tensor<2048x2048xf32>
  %k = tensor.index_map %v[d2, d1] : tensor<2048x2048xf32> -> tensor<32x2048x2048xf32>
  %p = arith.mulf %l, %k : tensor<32x2048x2048xf32>
  // CHECK: tensor.reduce add %p over [2] :
  %o = tensor.reduce add %p over [2] : tensor<32x2048x2048xf32> -> tensor<32x2048xf32>
  // CHECK: payload.cast %o {fuse.root} :
  %y = payload.cast %o : tensor<32x2048xf32> -> tensor<32x2048xbf16>
  func.return %y : tensor<32x2048xbf16>
}
