// RUN: dl-opt %s -p 'tensor-plan-fusion{target=cpu}' | filecheck %s
// RUN: dl-opt %s -p 'tensor-plan-fusion{target=cpu limit_memory=false}' | filecheck %s --check-prefix FREE

// Cores take long to compute %h twice, and it is kept; but then a call takes more than it may: what it
// returns, and 8 MiB that come on top on cores where there are sums.

// CHECK:     %h = arith.divf %c, %g : 
// CHECK:     %r = tensor.reduce add %h over [0] {fuse.root} : 
// FREE:      %h = arith.divf %c, %g {fuse.root} : 
func.func @main(%x: tensor<2049x1024xf32>) -> (tensor<1024xf32>, tensor<2049xf32>) attributes {memory_limit = 12292 : i64} {
  %a = math.sin %x : tensor<2049x1024xf32>
  %b = math.exp %a : tensor<2049x1024xf32>
  %c = math.sin %b : tensor<2049x1024xf32>
  %d = math.exp %c : tensor<2049x1024xf32>
  %e = math.tanh %d : tensor<2049x1024xf32>
  %f = arith.divf %a, %e : tensor<2049x1024xf32>
  %g = math.sin %f : tensor<2049x1024xf32>
  %h = arith.divf %c, %g : tensor<2049x1024xf32>
  %r = tensor.reduce add %h over [0] : tensor<2049x1024xf32> -> tensor<1024xf32>
  %s = tensor.reduce add %h over [1] : tensor<2049x1024xf32> -> tensor<2049xf32>
  func.return %r, %s : tensor<1024xf32>, tensor<2049xf32>
}
