// RUN: dl-opt %s -p loop-hoist-reduction-factors --split-input-file | filecheck %s
// RUN: %check_each %s -p loop-hoist-reduction-factors --split-input-file

// Factors, divisors and signs leave the sum, through both reductions.
func.func @main(%x: tensor<4x8x5xf32>, %f: tensor<4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> {
    // CHECK:      %a = loop.load %f
    // CHECK-NEXT: %b = loop.load %g
    // CHECK-NEXT: %[[O:.*]] = loop.reduce add (%k) in [8] -> f32 {
    // CHECK-NEXT:   %[[I:.*]] = loop.reduce add (%r) in [5] -> f32 {
    // CHECK-NEXT:     %v = loop.load %x
    // CHECK-NEXT:     %[[S:.*]] = arith.mulf %v, %v : f32
    // CHECK-NEXT:     loop.yield %[[S]] : f32
    // CHECK-NEXT:   }
    // CHECK-NEXT:   loop.yield %[[I]] : f32
    // CHECK-NEXT: }
    // CHECK-NEXT: %[[M:.*]] = arith.mulf %[[O]], %a : f32
    // CHECK-NEXT: %[[D:.*]] = arith.divf %[[M]], %b : f32
    // CHECK-NEXT: %[[N:.*]] = arith.negf %[[D]] : f32
    // CHECK-NEXT: loop.yield %[[N]] : f32
    %a = loop.load %f[%i] : tensor<4xf32>
    %b = loop.load %g[%i] : tensor<4xf32>
    %o = loop.reduce add (%k) in [8] -> f32 {
      %s = loop.reduce add (%r) in [5] -> f32 {
        %v = loop.load %x[%i, %k, %r] : tensor<4x8x5xf32>
        %0 = arith.mulf %v, %a : f32
        %1 = arith.negf %v : f32
        %2 = arith.mulf %0, %1 : f32
        loop.yield %2 : f32
      }
      %3 = arith.divf %s, %b : f32
      loop.yield %3 : f32
    }
    loop.yield %o : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// A selection against zero by a condition that does not change; a product inside of it follows.
func.func @main(%x: tensor<4x8xf32>, %c: tensor<4xi1>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> {
    // CHECK:      %[[R:.*]] = loop.reduce add
    // CHECK-NEXT:   %v = loop.load
    // CHECK-NEXT:   loop.yield %v
    // CHECK:      %[[M:.*]] = arith.mulf %[[R]], %two
    // CHECK-NEXT: payload.select %q, %[[M]], %zero : f32
    %q = loop.load %c[%i] : tensor<4xi1>
    %zero = payload.constant 0.0 : f32
    %two = payload.constant 2.0 : f32
    %o = loop.reduce add (%k) in [8] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x8xf32>
      %0 = arith.mulf %v, %two : f32
      %1 = payload.select %q, %0, %zero : f32
      loop.yield %1 : f32
    }
    loop.yield %o : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// Stays: a maximum, a rounded product, an integer sum, a sum of what does not change, a condition that changes.
func.func @main(%x: tensor<4x8xf32>, %f: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  // CHECK: loop.reduce max
  // CHECK: arith.mulf %{{.*}} : f32
  // CHECK-NEXT: loop.yield
  // CHECK: loop.reduce add
  // CHECK: arith.mulf %{{.*}} : f32
  // CHECK: payload.cast %{{.*}} : bf16 -> f32
  // CHECK-NEXT: loop.yield
  // CHECK: loop.reduce add
  // CHECK-NEXT: loop.yield %a
  %y, %z, %w = loop.nest (%i) in [4] -> tensor<4xf32>, tensor<4xf32>, tensor<4xf32> {
    %a = loop.load %f[%i] : tensor<4xf32>
    %m = loop.reduce max (%k) in [8] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x8xf32>
      %0 = arith.mulf %v, %a : f32
      loop.yield %0 : f32
    }
    %s = loop.reduce add (%k) in [8] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x8xf32>
      %0 = arith.mulf %v, %a : f32
      %1 = payload.cast %0 : f32 -> bf16
      %2 = payload.cast %1 : bf16 -> f32
      loop.yield %2 : f32
    }
    %n = loop.reduce add (%k) in [8] -> f32 {
      loop.yield %a : f32
    }
    loop.yield %m, %s, %n : f32, f32, f32
  }
  func.return %y, %z, %w : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// A divisor keeps the flags of its division, in the body and outside of it.

// CHECK:       loop.reduce add
// CHECK:         %[[Q:[a-z0-9_]+]] = arith.divf %v, %b fastmath<arcp> : f32
// CHECK-NEXT:    loop.yield %[[Q]] : f32
// CHECK:       arith.divf %s, %r fastmath<arcp> : f32
func.func @main(%x: tensor<4x64xf32>, %y: tensor<4xf32>, %z: tensor<64xf32>) -> tensor<4xf32> {
  %o = loop.nest (%i) in [4] -> tensor<4xf32> {
    %r = loop.load %y[%i] : tensor<4xf32>
    %s = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      %b = loop.load %z[%k] : tensor<64xf32>
      %w = arith.divf %v, %b fastmath<arcp> : f32
      %q = arith.divf %w, %r fastmath<arcp> : f32
      loop.yield %q : f32
    }
    loop.yield %s : f32
  }
  func.return %o : tensor<4xf32>
}

// -----

// A sign alone, and a condition alone, leave the sum: no factor is around.
func.func @main(%x: tensor<4x8xf32>, %c: tensor<4xi1>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK:      loop.yield %v : f32
  // CHECK-NEXT: }
  // CHECK-NEXT: %[[N:.*]] = arith.negf
  // CHECK:      loop.yield %[[V:.*]] : f32
  // CHECK-NEXT: }
  // CHECK-NEXT: %[[S:.*]] = payload.select %q, %{{.*}}, %zero : f32
  // CHECK-NEXT: loop.yield %[[N]], %[[S]]
  %y, %z = loop.nest (%i) in [4] -> tensor<4xf32>, tensor<4xf32> {
    %q = loop.load %c[%i] : tensor<4xi1>
    %zero = payload.constant 0.0 : f32
    %n = loop.reduce add (%k) in [8] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x8xf32>
      %0 = arith.negf %v : f32
      loop.yield %0 : f32
    }
    %s = loop.reduce add (%k) in [8] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x8xf32>
      %0 = payload.select %q, %v, %zero : f32
      loop.yield %0 : f32
    }
    loop.yield %n, %s : f32, f32
  }
  func.return %y, %z : tensor<4xf32>, tensor<4xf32>
}
