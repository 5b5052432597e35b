// RUN: dl-opt %s -p loop-fuse-reductions,cse,dce --split-input-file --remarks | filecheck %s
// RUN: %check_each %s -p loop-fuse-reductions,cse,dce --split-input-file

// A maximum and the sum of exponentials below it: softmax, without its name. The maximum is repaired as a frame.
func.func @main(%x: tensor<4x64xf32>) -> tensor<4xf32> {
  // CHECK:      %m, %l = loop.staged_reduce -> f32, f32 stages {
  // CHECK-NEXT:   %[[M:.*]] = loop.reduce max (%k) in [64] -> f32 {
  // CHECK:        %[[INF:.*]] = payload.constant 0xff800000 : f32
  // CHECK-NEXT:   %[[EMPTY:.*]] = payload.cmp eq %[[M]], %[[INF]] : f32
  // CHECK-NEXT:   %[[ZERO:.*]] = payload.constant 0.000000e+00 : f32
  // CHECK-NEXT:   %[[G:.*]] = payload.select %[[EMPTY]], %[[ZERO]], %[[M]] : f32
  // CHECK-NEXT:   %[[L:.*]] = loop.reduce add (%{{.*}}) in [64] -> f32 {
  // CHECK-NEXT:     %[[V:.*]] = loop.load
  // CHECK-NEXT:     %d = arith.subf %[[V]], %[[G]] : f32
  // CHECK-NEXT:     %e = math.exp %d : f32
  // CHECK:        loop.yield %[[M]], %[[L]] : f32, f32
  // CHECK-NEXT: } rescale (%[[OM:.*]]: f32, %[[OL:.*]]: f32, %[[NM:.*]]: f32, %{{.*}}: f32) {
  // CHECK-NEXT:   %[[INF2:.*]] = payload.constant 0xff800000 : f32
  // CHECK-NEXT:   %[[START:.*]] = payload.cmp eq %[[OM]], %[[INF2]] : f32
  // CHECK-NEXT:   %[[Z:.*]] = payload.constant 0.000000e+00 : f32
  // CHECK-NEXT:   %[[D:.*]] = arith.subf %[[OM]], %[[NM]] : f32
  // CHECK-NEXT:   %[[E:.*]] = math.exp %[[D]] : f32
  // CHECK-NEXT:   %[[T:.*]] = payload.select %[[START]], %[[Z]], %[[E]] : f32
  // CHECK-NEXT:   %[[ML:.*]] = arith.mulf %[[OL]], %[[T]] : f32
  // CHECK-NEXT:   loop.yield %[[OM]], %[[ML]] : f32, f32
  // CHECK:      %r = math.log %l : f32
  // CHECK-NEXT: arith.addf %m, %r : f32
  %y = loop.nest (%i) in [4] -> tensor<4xf32> {
    %m = loop.reduce max (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      loop.yield %v : f32
    }
    %l = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      %d = arith.subf %v, %m : f32
      %e = math.exp %d : f32
      loop.yield %e : f32
    }
    %r = math.log %l : f32
    %o = arith.addf %m, %r : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// A product of a scale and a shift moves by a matrix: the sum that it needs besides is the one that is already there.
func.func @main(%x: tensor<4x64xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK: loop.staged_reduce -> f32, f32, f32 stages {
  // CHECK: } rescale (%[[OM:.*]]: f32, %[[OL:.*]]: f32, %[[OE:.*]]: f32, %[[NM:.*]]: f32, %{{.*}}: f32, %{{.*}}: f32) {
  // CHECK: arith.mulf %[[OE]]
  // CHECK: %[[B:.*]] = arith.mulf %[[OL]]
  // CHECK-NEXT: arith.addf %{{.*}}, %[[B]]
  %y, %z = loop.nest (%i) in [4] -> tensor<4xf32>, tensor<4xf32> {
    %m = loop.reduce max (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      loop.yield %v : f32
    }
    %l = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      %d = arith.subf %v, %m : f32
      %e = math.exp %d : f32
      loop.yield %e : f32
    }
    %t = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      %d = arith.subf %v, %m : f32
      %e = math.exp %d : f32
      %p = arith.mulf %e, %d : f32
      loop.yield %p : f32
    }
    loop.yield %l, %t : f32, f32
  }
  func.return %y, %z : tensor<4xf32>, tensor<4xf32>
}

// -----

// Independent sums that read the same data share one pass and move by nothing.
func.func @main(%x: tensor<4x64xf32>, %w: tensor<64xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK: loop.staged_reduce -> f32, f32 stages {
  // CHECK: } rescale (%[[A:.*]]: f32, %[[B:.*]]: f32, %{{.*}}: f32, %{{.*}}: f32) {
  // CHECK-NEXT: loop.yield %[[A]], %[[B]] : f32, f32
  %y, %z = loop.nest (%i) in [4] -> tensor<4xf32>, tensor<4xf32> {
    %a = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      %s = arith.mulf %v, %v : f32
      loop.yield %s : f32
    }
    %b = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      %u = loop.load %w[%k] : tensor<64xf32>
      %s = arith.mulf %v, %u : f32
      loop.yield %s : f32
    }
    loop.yield %a, %b : f32, f32
  }
  func.return %y, %z : tensor<4xf32>, tensor<4xf32>
}

// -----

// A reassoc rounding may be done chunk by chunk, and stays where it is.
// CHECK: loop.staged_reduce
// CHECK: %[[E:[0-9a-z_]+]] = math.exp
// CHECK-NEXT: payload.cast %[[E]] reassoc : f32 -> bf16
// CHECK: rescale
// CHECK-NOT: payload.cast
// CHECK: func.return
func.func @main(%x: tensor<4x64xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> {
    %m = loop.reduce max (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      loop.yield %v : f32
    }
    %l = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      %d = arith.subf %v, %m : f32
      %e = math.exp %d : f32
      %b = payload.cast %e reassoc : f32 -> bf16
      %f = payload.cast %b : bf16 -> f32
      loop.yield %f : f32
    }
    loop.yield %l : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// Reductions that cannot be rescaled are not grouped, and a remark gives the reason: a mean as a frame, an exponential above its frame, a comparison.
func.func @main(%x: tensor<4x64xf32>, %n: tensor<4x64xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  // CHECK: remark: [loop-fuse-reductions] loop.reduce: not grouped, because it cannot be computed in chunks: it uses a running add, which would need a running count
  // CHECK-NOT: loop.staged_reduce
  %y, %z, %w = loop.nest (%i) in [4] -> tensor<4xf32>, tensor<4xf32>, tensor<4xf32> {
    %s = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      loop.yield %v : f32
    }
    %a = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      %d = arith.subf %v, %s : f32
      %e = arith.mulf %d, %d : f32
      loop.yield %e : f32
    }
    loop.yield %s, %a, %a : f32, f32, f32
  }
  func.return %y, %z, %w : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// CHECK: remark: [loop-fuse-reductions] loop.reduce: not grouped, because it cannot be computed in chunks: math.exp of a difference whose left side is not bounded by an earlier maximum
// CHECK-NOT: loop.staged_reduce
func.func @main(%x: tensor<4x64xf32>, %n: tensor<4x64xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> {
    %m = loop.reduce max (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      loop.yield %v : f32
    }
    %l = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %n[%i, %k] : tensor<4x64xf32>
      %d = arith.subf %v, %m : f32
      %e = math.exp %d : f32
      loop.yield %e : f32
    }
    loop.yield %l : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// CHECK: remark: [loop-fuse-reductions] loop.reduce: not grouped, because it cannot be computed in chunks: rounding to bf16 of a value that depends on an earlier result
// CHECK-NOT: loop.staged_reduce
func.func @main(%x: tensor<4x64xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> {
    %m = loop.reduce max (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      loop.yield %v : f32
    }
    %l = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %x[%i, %k] : tensor<4x64xf32>
      %d = arith.subf %v, %m : f32
      %e = math.exp %d : f32
      %b = payload.cast %e : f32 -> bf16
      %f = payload.cast %b : bf16 -> f32
      loop.yield %f : f32
    }
    loop.yield %l : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// Two reductions that differ only in where a constant stands are one, not two stages that would become one later.
// CHECK-LABEL: func.func @equal_but_for_a_constant
// CHECK: loop.nest
// CHECK: %[[outer:.*]] = loop.reduce max (%k) in [8] -> f32 {
// CHECK: loop.staged_reduce
// CHECK-NOT: loop.staged_reduce
// CHECK: loop.yield %[[outer]], %[[outer]] : f32, f32
func.func @equal_but_for_a_constant(%x: tensor<4x8x16xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %a, %b = loop.nest (%i) in [4] -> tensor<4xf32>, tensor<4xf32> {
    %0 = loop.reduce max (%k) in [8] -> f32 {
      %c = payload.constant 2.000000e+00 : f32
      %m = loop.reduce max (%l) in [16] -> f32 {
        %1 = loop.load %x[%i, %k, %l] : tensor<4x8x16xf32>
        loop.yield %1 : f32
      }
      %s = loop.reduce add (%l) in [16] -> f32 {
        %1 = loop.load %x[%i, %k, %l] : tensor<4x8x16xf32>
        %2 = arith.subf %1, %m : f32
        %3 = math.exp %2 : f32
        loop.yield %3 : f32
      }
      %4 = arith.mulf %s, %c : f32
      loop.yield %4 : f32
    }
    %d = payload.constant 2.000000e+00 : f32
    %5 = loop.reduce max (%k) in [8] -> f32 {
      %m = loop.reduce max (%l) in [16] -> f32 {
        %1 = loop.load %x[%i, %k, %l] : tensor<4x8x16xf32>
        loop.yield %1 : f32
      }
      %s = loop.reduce add (%l) in [16] -> f32 {
        %1 = loop.load %x[%i, %k, %l] : tensor<4x8x16xf32>
        %2 = arith.subf %1, %m : f32
        %3 = math.exp %2 : f32
        loop.yield %3 : f32
      }
      %4 = arith.mulf %s, %d : f32
      loop.yield %4 : f32
    }
    loop.yield %0, %5 : f32, f32
  }
  func.return %a, %b : tensor<4xf32>, tensor<4xf32>
}
