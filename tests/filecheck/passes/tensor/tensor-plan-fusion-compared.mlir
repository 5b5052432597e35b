// RUN: dl-opt %s -p "tensor-plan-fusion{strategy=all}" | filecheck %s

// A sum that is compared with the largest of its row is computed once, and the largest may be computed again: no sum
// that was added in another order equals it.
// CHECK-LABEL: @largest
func.func @largest(%x: tensor<16x64x8xf32>) -> tensor<16x64xi1> {
  // CHECK: tensor.reduce add %x over [2] {fuse.root} :
  %s = tensor.reduce add %x over [2] : tensor<16x64x8xf32> -> tensor<16x64xf32>
  // CHECK: math.exp %s :
  %e = math.exp %s : tensor<16x64xf32>
  // CHECK: tensor.reduce max %e over [1] :
  %m = tensor.reduce max %e over [1] : tensor<16x64xf32> -> tensor<16xf32>
  %b = tensor.index_map %m[d0] : tensor<16xf32> -> tensor<16x64xf32>
  // CHECK: payload.cmp eq %e, %b {fuse.root} :
  %c = payload.cmp eq %e, %b : tensor<16x64xf32>
  func.return %c : tensor<16x64xi1>
}

// Ranks compare the elements of a row with each other. Of the sums behind the sum the last bits do not matter, nor do
// those of what is compared with a constant, with itself by one name, or with another sum; integers are exact.
// CHECK-LABEL: @ranks
func.func @ranks(%x: tensor<16x64x8xf32>, %n: tensor<16x64xi64>) -> (tensor<16x64xi64>, tensor<16x64xi1>) {
  // CHECK: tensor.reduce add %x over [0, 2] :
  %t = tensor.reduce add %x over [0, 2] : tensor<16x64x8xf32> -> tensor<64xf32>
  %u = tensor.index_map %t[d1] : tensor<64xf32> -> tensor<16x64x8xf32>
  %d = arith.divf %x, %u : tensor<16x64x8xf32>
  // CHECK: tensor.reduce mul %{{.*}} over [2] {fuse.root} :
  %s = tensor.reduce mul %d over [2] : tensor<16x64x8xf32> -> tensor<16x64xf32>
  %l = tensor.index_map %s[d0, d1] : tensor<16x64xf32> -> tensor<16x64x64xf32>
  %r = tensor.index_map %s[d0, d2] : tensor<16x64xf32> -> tensor<16x64x64xf32>
  %c = payload.cmp lt %r, %l : tensor<16x64x64xf32>
  %i = payload.cast %c : tensor<16x64x64xi1> -> tensor<16x64x64xi64>
  // CHECK: tensor.reduce add %i over [2] {fuse.root} :
  %rank = tensor.reduce add %i over [2] : tensor<16x64x64xi64> -> tensor<16x64xi64>
  // CHECK: tensor.reduce add %x over [2] :
  %v = tensor.reduce add %x over [2] : tensor<16x64x8xf32> -> tensor<16x64xf32>
  %zero = payload.constant 0.0 : tensor<16x64xf32>
  %p = payload.cmp gt %v, %zero : tensor<16x64xf32>
  %nan = payload.cmp ne %v, %v : tensor<16x64xf32>
  %tt = tensor.index_map %t[d1] : tensor<64xf32> -> tensor<16x64xf32>
  %o = payload.cmp lt %v, %tt : tensor<16x64xf32>
  // CHECK: tensor.reduce add %n over [1] :
  %ns = tensor.reduce add %n over [1] : tensor<16x64xi64> -> tensor<16xi64>
  %nb = tensor.index_map %ns[d0] : tensor<16xi64> -> tensor<16x64xi64>
  %ni = arith.addi %nb, %n : tensor<16x64xi64>
  %nc = payload.cmp lt %ni, %nb : tensor<16x64xi64>
  %q = arith.ori %p, %nan : tensor<16x64xi1>
  %q2 = arith.ori %q, %o : tensor<16x64xi1>
  // CHECK: arith.ori %{{.*}}, %nc {fuse.root} :
  %q3 = arith.ori %q2, %nc : tensor<16x64xi1>
  func.return %rank, %q3 : tensor<16x64xi64>, tensor<16x64xi1>
}
