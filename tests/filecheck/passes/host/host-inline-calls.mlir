// RUN: dl-opt %s -p host-inline-calls --split-input-file --verify-diagnostics | filecheck %s

// Two calls, one of them through another function; results are arguments of what follows, private functions go.
// CHECK-NOT: @twice
// CHECK-LABEL: func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
// CHECK-NEXT: %[[A:.*]] = arith.addf %x, %x : tensor<4xf32>
// CHECK-NEXT: %[[B:.*]] = arith.addf %[[A]], %[[A]] : tensor<4xf32>
// CHECK-NEXT: %[[C:.*]] = arith.mulf %[[B]], %x : tensor<4xf32>
// CHECK-NEXT: func.return %[[C]], %x : tensor<4xf32>, tensor<4xf32>
func.func private @twice(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
func.func private @four_times_by(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = func.call @twice(%a) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = func.call @twice(%0) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = arith.mulf %1, %b : tensor<4xf32>
  func.return %2, %b : tensor<4xf32>, tensor<4xf32>
}
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0, %1 = func.call @four_times_by(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return %0, %1 : tensor<4xf32>, tensor<4xf32>
}

// -----

// On buffers, every call gets an allocation of its own.
// CHECK-LABEL: func.func @main(
// CHECK-COUNT-2: kernel.alloc
// CHECK-NOT: func.call @layer
kernel.func @k0(%x: memref<4xf32>, %y: memref<4xf32>) grid [1] warps 1 {
}
func.func private @layer(%x: memref<4xf32>, %y: memref<4xf32>) {
  %t = kernel.alloc : memref<4xf32>
  kernel.launch @k0(%x, %t) : memref<4xf32>, memref<4xf32>
  kernel.launch @k0(%t, %y) : memref<4xf32>, memref<4xf32>
  func.return
}
func.func @main(%x: memref<4xf32>, %y: memref<4xf32>) {
  func.call @layer(%x, %y) : (memref<4xf32>, memref<4xf32>) -> ()
  func.call @layer(%y, %x) : (memref<4xf32>, memref<4xf32>) -> ()
  func.return
}

// -----

// CHECK: expected a call that is not recursive, but got @main inside of itself
func.func @main() {
  func.call @main() : () -> ()
  func.return
}

// -----

// CHECK: expected a function with a body to inline, but got @elsewhere
func.func private @elsewhere() -> ()
func.func @main() {
  func.call @elsewhere() : () -> ()
  func.return
}

// -----

// What PyTorch computes is called where it stood, also from inside of another function.
// CHECK: func.func private @eager_inverse(memref<4xf32>, memref<4xf32>) -> () attributes {torch.eager = "aten.inverse"
// CHECK-LABEL: func.func @main(
// CHECK-NEXT: %[[T:.*]] = kernel.alloc
// CHECK-NEXT: func.call @eager_inverse(%x, %[[T]])
// CHECK-NEXT: func.call @eager_inverse(%[[T]], %y)
// CHECK-NEXT: func.return
func.func private @eager_inverse(memref<4xf32>, memref<4xf32>) attributes {torch.eager = "aten.inverse", torch.eager_results = 1 : i64}
func.func private @layer(%x: memref<4xf32>, %y: memref<4xf32>) {
  func.call @eager_inverse(%x, %y) : (memref<4xf32>, memref<4xf32>) -> ()
  func.return
}
func.func @main(%x: memref<4xf32>, %y: memref<4xf32>) {
  %t = kernel.alloc : memref<4xf32>
  func.call @layer(%x, %t) : (memref<4xf32>, memref<4xf32>) -> ()
  func.call @eager_inverse(%t, %y) : (memref<4xf32>, memref<4xf32>) -> ()
  func.return
}
