// RUN: dl-opt %s -p loop-use-fast-math,cse,dce --split-input-file --remarks | filecheck %s
// RUN: %check_each %s -p loop-use-fast-math,cse,dce,loop-fuse-reductions,cse,dce --split-input-file

// Scores with a scale and a mask: the exponentials may be approximate, and the frame is multiplied once a row.

// CHECK-LABEL: func.func @main
// CHECK:       %m = loop.reduce max
// CHECK:       %[[LOG:[a-z0-9_]+]] = payload.constant 1.44269502 : f32
// CHECK-NEXT:  %[[FRAME:[a-z0-9_]+]] = arith.mulf %m, %[[LOG]] : f32
// CHECK-NEXT:  loop.reduce add
// CHECK:         %x_1 = payload.select
// CHECK-NEXT:    %[[Y:[a-z0-9_]+]] = arith.mulf %x_1, %[[LOG]] : f32
// CHECK-NEXT:    %[[D:[a-z0-9_]+]] = arith.subf %[[Y]], %[[FRAME]] : f32
// CHECK-NEXT:    %[[P:[a-z0-9_]+]] = math.exp2 %[[D]] fastmath<afn> : f32
// CHECK-NEXT:    loop.yield %[[P]] : f32
// CHECK-NOT:   math.exp
// CHECK:       func.return
func.func @main(%s: tensor<4x64xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> {
    %scale = payload.constant 0.25 : f32
    %low = payload.constant 0xff800000 : f32
    %n = payload.cast %i : index -> i64
    %m = loop.reduce max (%k) in [64] -> f32 {
      %j = payload.cast %k : index -> i64
      %c = payload.cmp ge %j, %n : i64
      %v = loop.load %s[affine_map<(d0, d1) -> (d0, d1)>](%i, %k) : tensor<4x64xf32>
      %t = arith.mulf %v, %scale : f32
      %x = payload.select %c, %t, %low : f32
      loop.yield %x : f32
    }
    %l = loop.reduce add (%k) in [64] -> f32 {
      %j = payload.cast %k : index -> i64
      %c = payload.cmp ge %j, %n : i64
      %v = loop.load %s[affine_map<(d0, d1) -> (d0, d1)>](%i, %k) : tensor<4x64xf32>
      %t = arith.mulf %v, %scale : f32
      %x = payload.select %c, %t, %low : f32
      %d = arith.subf %x, %m : f32
      %p = math.exp %d fastmath<afn> : f32
      loop.yield %p : f32
    }
    loop.yield %l : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// What was loaded is exact; and without the flag nothing is approximate.

// CHECK:       remark: [loop-use-fast-math] math.exp: what it is taken of is exact, and would not be after it is multiplied
// CHECK-LABEL: func.func @main
// CHECK-NOT:   math.exp2
func.func @main(%s: tensor<4x64xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %y, %z = loop.nest (%i) in [4] -> tensor<4xf32>, tensor<4xf32> {
    %two = payload.constant 2.0 : f32
    %m = loop.reduce max (%k) in [64] -> f32 {
      %v = loop.load %s[affine_map<(d0, d1) -> (d0, d1)>](%i, %k) : tensor<4x64xf32>
      loop.yield %v : f32
    }
    %l = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %s[affine_map<(d0, d1) -> (d0, d1)>](%i, %k) : tensor<4x64xf32>
      %d = arith.subf %v, %m : f32
      %p = math.exp %d fastmath<afn> : f32
      loop.yield %p : f32
    }
    %l2 = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %s[affine_map<(d0, d1) -> (d0, d1)>](%i, %k) : tensor<4x64xf32>
      %t = arith.mulf %v, %two : f32
      %d = arith.subf %t, %m : f32
      %p = math.exp %d : f32
      loop.yield %p : f32
    }
    loop.yield %l, %l2 : f32, f32
  }
  func.return %y, %z : tensor<4xf32>, tensor<4xf32>
}

// -----

// A softmax: one inverse a row, and a product an element.

// CHECK-LABEL: func.func @main
// CHECK:      %l = loop.reduce add
// CHECK:      %[[ONE:[a-z0-9_]+]] = payload.constant 1.000000e+00 : f32
// CHECK-NEXT: %inverse = arith.divf %[[ONE]], %l : f32
// CHECK:      %e = math.exp
// CHECK-NEXT: arith.mulf %e, %inverse : f32
// CHECK-NOT:  arith.divf
// CHECK:      func.return
func.func @main(%s: tensor<4x64xf32>) -> tensor<4x64xf32> {
  %y = loop.nest (%i, %j) in [4, 64] -> tensor<4x64xf32> {
    %m = loop.reduce max (%k) in [64] -> f32 {
      %v = loop.load %s[affine_map<(d0, d1) -> (d0, d1)>](%i, %k) : tensor<4x64xf32>
      loop.yield %v : f32
    }
    %l = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %s[affine_map<(d0, d1) -> (d0, d1)>](%i, %k) : tensor<4x64xf32>
      %d = arith.subf %v, %m : f32
      %p = math.exp %d : f32
      loop.yield %p : f32
    }
    %w = loop.load %s[affine_map<(d0, d1) -> (d0, d1)>](%i, %j) : tensor<4x64xf32>
    %b = arith.subf %w, %m : f32
    %e = math.exp %b : f32
    %o = arith.divf %e, %l fastmath<arcp> : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<4x64xf32>
}

// -----

// Not permitted, and one division a row anyway.

// CHECK-LABEL:   func.func @main
// CHECK-NOT:     %inverse
// CHECK-COUNT-2: arith.divf
// CHECK-NOT:     %inverse
// CHECK:         func.return
func.func @main(%s: tensor<4x64xf32>) -> (tensor<4x64xf32>, tensor<4x64xf32>) {
  %y, %z = loop.nest (%i, %j) in [4, 64] -> tensor<4x64xf32>, tensor<4x64xf32> {
    %m = loop.reduce max (%k) in [64] -> f32 {
      %v = loop.load %s[affine_map<(d0, d1) -> (d0, d1)>](%i, %k) : tensor<4x64xf32>
      loop.yield %v : f32
    }
    %l = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %s[affine_map<(d0, d1) -> (d0, d1)>](%i, %k) : tensor<4x64xf32>
      %d = arith.subf %v, %m : f32
      %p = math.exp %d : f32
      loop.yield %p : f32
    }
    %w = loop.load %s[affine_map<(d0, d1) -> (d0, d1)>](%i, %j) : tensor<4x64xf32>
    %a = arith.divf %w, %l : f32
    %c = arith.divf %m, %l fastmath<arcp> : f32
    loop.yield %a, %c : f32, f32
  }
  func.return %y, %z : tensor<4x64xf32>, tensor<4x64xf32>
}
