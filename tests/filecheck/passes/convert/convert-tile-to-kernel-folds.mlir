// RUN: dl-opt %s --split-input-file -p tensor-to-loop,loop-to-tile,convert-tile-to-kernel | filecheck %s
// RUN: %check_each %s --split-input-file -p tensor-to-loop,loop-to-tile,tile-to-kernel

// A carry of which the last value is asked for: the first step reads where it comes from, two rows take turns, the last
// step writes where it belongs. Rows are as long as alignment needs.
// CHECK-LABEL: func.func @main(%h: memref<3xf32>, %x: memref<9x3x4xf32>, %last: memref<3xf32>)
// CHECK-NEXT: %[[RING:.*]] = kernel.alloc : memref<2x4xf32>
// CHECK-NEXT: %[[ZERO:.*]] = payload.constant 0 : index
// CHECK-NEXT: %[[TO:.*]] = kernel.slice %[[RING]][(%[[ZERO]] + 1) mod 2] : memref<2x4xf32> -> memref<3xf32>
// CHECK-NEXT: %[[X:.*]] = kernel.slice %x[%[[ZERO]]] : memref<9x3x4xf32> -> memref<3x4xf32>
// CHECK-NEXT: func.call @step(%h, %[[X]], %[[TO]])
// CHECK-NEXT: %[[ONE:.*]] = payload.constant 1 : index
// CHECK-NEXT: %[[EIGHT:.*]] = payload.constant 8 : index
// CHECK-NEXT: %[[BY:.*]] = payload.constant 1 : index
// CHECK-NEXT: scf.for %t = %[[ONE]] to %[[EIGHT]] step %[[BY]] {
// CHECK-NEXT:   %[[FROM:.*]] = kernel.slice %[[RING]][%t mod 2]
// CHECK-NEXT:   %[[TO:.*]] = kernel.slice %[[RING]][(%t + 1) mod 2]
// CHECK-NEXT:   %[[X:.*]] = kernel.slice %x[%t]
// CHECK-NEXT:   func.call @step(%[[FROM]], %[[X]], %[[TO]])
// CHECK-NEXT: }
// CHECK-NEXT: %[[END:.*]] = payload.constant 8 : index
// CHECK-NEXT: %[[FROM:.*]] = kernel.slice %[[RING]][%[[END]] mod 2]
// CHECK-NEXT: %[[X:.*]] = kernel.slice %x[%[[END]]]
// CHECK-NEXT: func.call @step(%[[FROM]], %[[X]], %last)
// CHECK-NEXT: func.return
func.func private @step(%h: tensor<3xf32>, %x: tensor<3x4xf32>) -> tensor<3xf32> {
  %0 = tensor.reduce add %x over [1] : tensor<3x4xf32> -> tensor<3xf32>
  %1 = arith.mulf %h, %0 : tensor<3xf32>
  func.return %1 : tensor<3xf32>
}
func.func @main(%h: tensor<3xf32>, %x: tensor<9x3x4xf32>) -> tensor<3xf32> {
  %last = tensor.scan @step 9 carry(%h : tensor<3xf32>) each(%x : tensor<9x3x4xf32>) -> tensor<3xf32>
  func.return %last : tensor<3xf32>
}

// -----

// A history is the memory of its carry: a step reads what the one before wrote, and no step is special but the first.
// CHECK-LABEL: func.func @main(%h: memref<4xf32>, %w: memref<4xf32>, %all: memref<9x4xf32>)
// CHECK-NOT: kernel.alloc
// CHECK: func.call @step(%h, %w, %{{.*}})
// CHECK: scf.for %t
// CHECK-NEXT:   %[[FROM:.*]] = kernel.slice %all[%t - 1]
// CHECK-NEXT:   %[[TO:.*]] = kernel.slice %all[%t]
// CHECK-NEXT:   func.call @step(%[[FROM]], %w, %[[TO]])
// CHECK-NEXT: }
// CHECK-NEXT: func.return
func.func private @step(%h: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.mulf %h, %w : tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
func.func @main(%h: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<9x4xf32> {
  %all = tensor.scan @step 9 carry(%h : tensor<4xf32>) with(%w : tensor<4xf32>) history [0] -> tensor<9x4xf32>
  func.return %all : tensor<9x4xf32>
}

// -----

// A single step calls the function once.
// CHECK-LABEL: func.func @main(%h: memref<4xf32>, %w: memref<4xf32>, %last: memref<4xf32>)
// CHECK-NEXT: payload.constant
// CHECK-NEXT: func.call @step(%h, %w, %last)
// CHECK-NEXT: func.return
func.func private @step(%h: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.mulf %h, %w : tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
func.func @main(%h: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> {
  %last = tensor.scan @step 1 carry(%h : tensor<4xf32>) with(%w : tensor<4xf32>) -> tensor<4xf32>
  func.return %last : tensor<4xf32>
}
