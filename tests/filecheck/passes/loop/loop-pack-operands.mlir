// RUN: dl-opt %s --split-input-file --verify-diagnostics -p loop-pack-operands | filecheck %s

// A weight is copied before, panel by panel: indices of which a tile has one value, those of the sum, and what a tile has
// of the index itself, which is the last of the product then. Another load along it follows.

// CHECK-LABEL: func.func @main
// CHECK-NEXT:    [[P:%w_packed]] = loop.nest (%[[A:.*]], %[[B:.*]], %[[C:.*]], %[[D:.*]]) in [2, 3, 20, 32] -> tensor<2x3x20x32xf32> {
// CHECK-NEXT:      loop.load %w[%[[A]] * 32 + %[[D]], %[[C]], %[[B]]]
// CHECK:         %y = loop.nest (%jo, %n, %ji) in [2, 56, 32] to [%jo * 32 + %ji, %n] -> tensor<64x56xf32> attributes {schedule = #tile.schedule<block = [1, 64, 32], serial = [0], chunk = [32, 1], warps = 1, lanes = 1>} {
// CHECK:             loop.load %x[%k, %n + %s - 1] where
// CHECK:             loop.load [[P]][%jo, %s, %k, %ji] : tensor<2x3x20x32xf32>
// CHECK:           loop.load %b[%jo * 32 + %ji]
func.func @main(%x: tensor<20x56xf32>, %w: tensor<64x20x3xf32>, %b: tensor<64xf32>) -> tensor<64x56xf32> {
  %y = loop.nest (%j, %n) in [64, 56] -> tensor<64x56xf32> attributes {schedule = #tile.schedule<block = [32, 64], serial = [0], pack = [0], chunk = [32, 1], warps = 1, lanes = 1>} {
    %zero = payload.constant 0.0 : f32
    %c = loop.reduce add (%k, %s) in [20, 3] -> f32 {
      %a = loop.load %x[%k, %n + %s - 1] where 0 <= %n + %s - 1 < 56 else %zero : tensor<20x56xf32>
      %v = loop.load %w[%j, %k, %s] : tensor<64x20x3xf32>
      %p = arith.mulf %a, %v : f32
      loop.yield %p : f32
    }
    %o = loop.load %b[%j] : tensor<64xf32>
    %r = arith.addf %c, %o : f32
    loop.yield %r : f32
  }
  func.return %y : tensor<64x56xf32>
}

// -----

// Tiles that do not divide the index: all of it is one panel. What lies outside of a domain is copied as what it is there.

// CHECK-LABEL: func.func @main
// CHECK-NEXT:    [[P:%x_packed]] = loop.nest (%{{.*}}, %{{.*}}) in [70, 20] -> tensor<70x20xbf16> {
// CHECK-NEXT:      [[Z:%.*]] = payload.constant 0.000000e+00 : bf16
// CHECK-NEXT:      loop.load %x[%[[B:.*]], %[[A:.*]] - 1] where 1 <= %[[A]] < 70 else [[Z]]
// CHECK:         %y = loop.nest (%j, %i) in [40, 20] to [%i, %j] -> tensor<20x40xf32> attributes {schedule = #tile.schedule<block = [64, 32], chunk = [64], warps = 1, lanes = 1>} {
// CHECK:             loop.load [[P]][%k, %i]
func.func @main(%x: tensor<20x69xbf16>, %w: tensor<70x40xbf16>) -> tensor<20x40xf32> {
  %y = loop.nest (%i, %j) in [20, 40] -> tensor<20x40xf32> attributes {schedule = #tile.schedule<block = [32, 64], pack = [0], chunk = [64], warps = 1, lanes = 1>} {
    %zero = payload.constant 0.0 : bf16
    %s = loop.reduce add (%k) in [70] -> f32 {
      %a = loop.load %x[%i, %k - 1] where 1 <= %k < 70 else %zero : tensor<20x69xbf16>
      %b = loop.load %w[%k, %j] : tensor<70x40xbf16>
      %c = payload.cast %a : bf16 -> f32
      %d = payload.cast %b : bf16 -> f32
      %p = arith.mulf %c, %d : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<20x40xf32>
}

// -----

func.func @main(%x: tensor<20x70xf32>, %w: tensor<70x40xf32>) -> tensor<20x40xf32> {
  // expected-error@below {{an operand along this index is computed}}
  %y = loop.nest (%i, %j) in [20, 40] -> tensor<20x40xf32> attributes {schedule = #tile.schedule<block = [32, 64], pack = [0], chunk = [64], warps = 1, lanes = 1>} {
    %s = loop.reduce add (%k) in [70] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<20x70xf32>
      %b = loop.load %w[%k, %j] : tensor<70x40xf32>
      %c = math.absf %a : f32
      %p = arith.mulf %c, %b : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<20x40xf32>
}

// -----

// The weights of a gathered expert: the copy has all experts, and the expert is a coordinate of the copy.

// CHECK-LABEL: func.func @main
// CHECK:         [[P:%w_packed]] = loop.nest (%[[A:.*]], %[[E:.*]], %[[K:.*]], %[[D:.*]]) in [2, 5, 16, 32] -> tensor<2x5x16x32xf32> {
// CHECK-NEXT:      loop.load %w[%[[E]], %[[A]] * 32 + %[[D]], %[[K]]]
// CHECK:             [[S:%.*]] = payload.cast %{{.*}} : i32 -> index
// CHECK:             loop.load [[P]][%jo, symbol([[S]]), %k, %ji] where 0 <= symbol([[S]]) < 5 else
func.func @main(%x: tensor<3x8x16xf32>, %w: tensor<5x64x16xf32>, %of: tensor<3xi32>) -> tensor<3x8x64xf32> {
  %y = loop.nest (%t, %r, %j) in [3, 8, 64] -> tensor<3x8x64xf32> attributes {schedule = #tile.schedule<block = [1, 8, 32], pack = [2], chunk = [16], warps = 1, lanes = 1>} {
    %zero = payload.constant 0.0 : f32
    %o = loop.load %of[%t] : tensor<3xi32>
    %e = payload.cast %o : i32 -> index
    %s = loop.reduce add (%k) in [16] -> f32 {
      %a = loop.load %x[%t, %r, %k] : tensor<3x8x16xf32>
      %b = loop.load %w[symbol(%e), %j, %k] where 0 <= symbol(%e) < 5 else %zero : tensor<5x64x16xf32>
      %p = arith.mulf %a, %b : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<3x8x64xf32>
}

// -----

func.func @main(%x: tensor<8x16xf32>, %w: tensor<90x16xf32>, %of: tensor<64xi32>) -> tensor<8x64xf32> {
  // expected-error@below {{an operand along this index is gathered}}
  %y = loop.nest (%r, %j) in [8, 64] -> tensor<8x64xf32> attributes {schedule = #tile.schedule<block = [8, 32], pack = [1], chunk = [16], warps = 1, lanes = 1>} {
    %zero = payload.constant 0.0 : f32
    %o = loop.load %of[%j] : tensor<64xi32>
    %e = payload.cast %o : i32 -> index
    %s = loop.reduce add (%k) in [16] -> f32 {
      %a = loop.load %x[%r, %k] : tensor<8x16xf32>
      %b = loop.load %w[symbol(%e) + %j * 0, %k] where 0 <= symbol(%e) < 90 else %zero : tensor<90x16xf32>
      %p = arith.mulf %a, %b : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<8x64xf32>
}
