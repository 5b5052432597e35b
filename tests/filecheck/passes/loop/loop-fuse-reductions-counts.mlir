// RUN: dl-opt %s -p 'loop-fuse-reductions{count_from=2},cse,dce' --split-input-file | filecheck %s
// RUN: %check_each %s -p 'loop-fuse-reductions{count_from=2},cse,dce' --split-input-file

// A variance: the mean of what was seen is its sum divided by a running count, and what is measured from it moves to
// the mean of all.

// CHECK-LABEL: func.func @main
// CHECK:         %count, %{{.*}}, %{{.*}}, %{{.*}} = loop.staged_reduce -> f32, f32, f32, f32 stages {
// CHECK-NEXT:      %[[N:.*]] = loop.reduce add (%{{.*}}) in [40] -> f32 {
// CHECK-NEXT:        %[[ONE:.*]] = payload.constant 1.000000e+00 : f32
// CHECK-NEXT:        loop.yield %[[ONE]] : f32
// CHECK:           %[[S:.*]] = loop.reduce add
// CHECK:           %[[M:.*]] = arith.divf %[[S]], %[[N]] : f32
// CHECK:           loop.reduce add
// CHECK:             arith.subf %{{.*}}, %[[M]] : f32
// CHECK-NEXT:        loop.yield
// CHECK:           loop.reduce add
// CHECK:             arith.mulf
// CHECK:         } rescale
// CHECK:           %[[EMPTY:.*]] = payload.cmp eq
// CHECK-NEXT:      %[[OLD:.*]] = arith.divf
// CHECK-NEXT:      %[[NEW:.*]] = arith.divf
// CHECK-NEXT:      %[[STEP:.*]] = arith.subf %[[OLD]], %[[NEW]] : f32
// CHECK-NEXT:      payload.select %[[EMPTY]], %{{.*}}, %[[STEP]] : f32
func.func @main(%x: tensor<4x40xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> {
    %s = loop.reduce add (%k) in [40] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<4x40xf32>
      loop.yield %a : f32
    }
    %n = payload.constant 40.0 : f32
    %m = arith.divf %s, %n : f32
    %v = loop.reduce add (%k) in [40] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<4x40xf32>
      %d = arith.subf %a, %m : f32
      %q = arith.mulf %d, %d : f32
      loop.yield %q : f32
    }
    loop.yield %v : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// Where the maximum is: what was found so far counts as long as the maximum is the same, or no number.

// CHECK-LABEL: func.func @main
// CHECK:         loop.staged_reduce -> f32, i64 stages {
// CHECK:         } rescale (%[[OLD:.*]]: f32, %[[AT:.*]]: i64, %[[NEW:.*]]: f32, %{{.*}}: i64) {
// CHECK-NEXT:      %[[SAME:.*]] = payload.cmp eq %[[OLD]], %[[NEW]] : f32
// CHECK-NEXT:      %[[NAN:.*]] = payload.cmp ne %[[OLD]], %[[OLD]] : f32
// CHECK-NEXT:      %[[KEPT:.*]] = arith.ori %[[SAME]], %[[NAN]] : i1
// CHECK-NEXT:      %[[MOVED:.*]] = payload.select %[[KEPT]], %[[AT]], %{{.*}} : i64
// CHECK-NEXT:      loop.yield %[[OLD]], %[[MOVED]] : f32, i64
func.func @main(%x: tensor<4x40xf32>) -> tensor<4xi64> {
  %y = loop.nest (%i) in [4] -> tensor<4xi64> {
    %m = loop.reduce max (%k) in [40] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<4x40xf32>
      loop.yield %a : f32
    }
    %none = payload.constant 40 : i64
    %v = loop.reduce min (%k) in [40] -> i64 {
      %a = loop.load %x[%i, %k] : tensor<4x40xf32>
      %here = payload.cmp eq %a, %m : f32
      %nan = payload.cmp ne %a, %a : f32
      %c = arith.ori %here, %nan : i1
      %p = payload.cast %k : index -> i64
      %q = payload.select %c, %p, %none : i64
      loop.yield %q : i64
    }
    loop.yield %v : i64
  }
  func.return %y : tensor<4xi64>
}
