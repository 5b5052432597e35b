// RUN: dl-opt %s -p loop-use-fast-math,cse,dce --split-input-file | filecheck %s
// RUN: %check_each %s -p loop-use-fast-math,cse,dce,loop-fuse-reductions,cse,dce --split-input-file

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
      %v = loop.load %s[%i, %k] : tensor<4x64xf32>
      loop.yield %v : f32
    }
    %l = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %s[%i, %k] : tensor<4x64xf32>
      %d = arith.subf %v, %m : f32
      %p = math.exp %d : f32
      loop.yield %p : f32
    }
    %w = loop.load %s[%i, %j] : tensor<4x64xf32>
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
      %v = loop.load %s[%i, %k] : tensor<4x64xf32>
      loop.yield %v : f32
    }
    %l = loop.reduce add (%k) in [64] -> f32 {
      %v = loop.load %s[%i, %k] : tensor<4x64xf32>
      %d = arith.subf %v, %m : f32
      %p = math.exp %d : f32
      loop.yield %p : f32
    }
    %w = loop.load %s[%i, %j] : tensor<4x64xf32>
    %a = arith.divf %w, %l : f32
    %c = arith.divf %m, %l fastmath<arcp> : f32
    loop.yield %a, %c : f32, f32
  }
  func.return %y, %z : tensor<4x64xf32>, tensor<4x64xf32>
}
