// RUN: dl-opt %s --split-input-file -p dce | filecheck %s

// What nobody needs goes, and what only that has used.
// CHECK-LABEL: func.func @chain
// CHECK-NEXT: %a = math.exp %x : f32
// CHECK-NEXT: func.return %a : f32
func.func @chain(%x: f32) -> f32 {
  %a = math.exp %x : f32
  %b = math.sin %a : f32
  %c = math.exp %b : f32
  func.return %a : f32
}

// -----

// So does what an op has inside of it: with the op, or alone.
// CHECK-LABEL: func.func @regions
// CHECK-NOT: math.exp
// CHECK: loop.nest
// CHECK-NEXT: %0 = loop.load
// CHECK-NEXT: loop.yield %0 : f32
// CHECK-NOT: loop.nest
// CHECK: func.return %a
func.func @regions(%x: tensor<8xf32>, %s: f32) -> tensor<8xf32> {
  %e = math.exp %s : f32
  %a = loop.nest (%i) in [8] -> tensor<8xf32> {
    %0 = loop.load %x[%i] : tensor<8xf32>
    %1 = math.sin %0 : f32
    loop.yield %0 : f32
  }
  %b = loop.nest (%i) in [8] -> tensor<8xf32> {
    %0 = loop.load %a[%i] : tensor<8xf32>
    %1 = arith.addf %0, %e : f32
    loop.yield %1 : f32
  }
  func.return %a : tensor<8xf32>
}

// -----

// What nobody reads of a store stays: it writes. Memory that nobody uses goes.
// CHECK-LABEL: kernel.func @stores
// CHECK-NOT: kernel.shared
// CHECK: payload.constant
// CHECK: kernel.store
kernel.func @stores(%x: memref<32xf32>) grid [1] warps 1 {
  %s = kernel.shared : memref<32xf32, "shared">
  %v = payload.constant 1.0 : vector<1xf32>
  %lane = kernel.id lane
  kernel.store %v, %x[%lane] : memref<32xf32>, vector<1xf32>
}
