// RUN: dl-opt %s --split-input-file --verify-diagnostics -p loop-split-f32-operands | filecheck %s

// A factor that two nests read is split once, right behind where it comes from; what has a value outside of its domain has
// zeros there in all of its parts. A factor that is narrow already stays as it is.

// CHECK-LABEL: func.func @main
// CHECK-NEXT:    [[X0:%.*]], [[X1:%.*]], [[X2:%.*]] = loop.nest (%[[I:.*]], %[[K:.*]]) in [64, 128] -> tensor<64x128xbf16>, tensor<64x128xbf16>, tensor<64x128xbf16> {
// CHECK-NEXT:      [[X:%.*]] = loop.load %x[%[[I]], %[[K]]]
// CHECK-NEXT:      [[P:%.*]] = payload.cast [[X]] : f32 -> bf16
// CHECK-NEXT:      [[W:%.*]] = payload.cast [[P]] : bf16 -> f32
// CHECK-NEXT:      [[R:%.*]] = arith.subf [[X]], [[W]] : f32
// CHECK:           loop.yield [[P]], %{{.*}}, %{{.*}} : bf16, bf16, bf16
// CHECK:         %y = loop.nest (%i, %j) in [64, 32] -> tensor<64x32xf32> attributes {schedule = #tile.schedule<block = [64, 32], chunk = [64], warps = 4, atom = mma, f32_matmul_precision = bf16x3>} {
// CHECK-NEXT:      %{{.*}} = payload.constant 0.000000e+00 : f32
// CHECK-NEXT:      %s = loop.reduce add (%k) in [128] -> f32 {
// CHECK-NEXT:        [[Z:%a.*]] = payload.constant 0.000000e+00 : bf16
// CHECK-NEXT:        [[A:%a.*]] = loop.load [[X0]][%i - 1, %k] where 1 <= %i < 64 else [[Z]] : tensor<64x128xbf16>
// CHECK:             [[B:%a.*]] = loop.load [[X1]][%i - 1, %k] where
// CHECK:             [[C:%a.*]] = loop.load [[X2]][%i - 1, %k] where
// CHECK-NEXT:        [[A0:%.*]] = payload.cast [[A]] : bf16 -> f32
// CHECK-NEXT:        [[A1:%.*]] = payload.cast [[B]] : bf16 -> f32
// CHECK-NEXT:        [[A2:%.*]] = payload.cast [[C]] : bf16 -> f32
// CHECK-NEXT:        %{{.*}} = payload.combine_bf16x3 [[A0]], [[A1]], [[A2]] : f32
// CHECK-NEXT:        %n = loop.load %w
// CHECK:           %z = loop.nest
// CHECK:             payload.combine_bf16x3
// CHECK-NOT:     payload.combine_bf16x3
func.func @main(%x: tensor<64x128xf32>, %w: tensor<128x32xbf16>) -> (tensor<64x32xf32>, tensor<64x32xf32>) {
  %y = loop.nest (%i, %j) in [64, 32] -> tensor<64x32xf32> attributes {schedule = #tile.schedule<block = [64, 32], chunk = [64], warps = 4, atom = mma, f32_matmul_precision = bf16x3_presplit>} {
    %zero = payload.constant 0.0 : f32
    %s = loop.reduce add (%k) in [128] -> f32 {
      %a = loop.load %x[%i - 1, %k] where 1 <= %i < 64 else %zero : tensor<64x128xf32>
      %n = loop.load %w[%k, %j] : tensor<128x32xbf16>
      %b = payload.cast %n : bf16 -> f32
      %p = arith.mulf %a, %b : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  %z = loop.nest (%i, %j) in [64, 32] -> tensor<64x32xf32> attributes {schedule = #tile.schedule<block = [64, 32], chunk = [64], warps = 4, atom = mma, f32_matmul_precision = bf16x3_presplit>} {
    %s = loop.reduce add (%k) in [128] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<64x128xf32>
      %n = loop.load %w[%k, %j] : tensor<128x32xbf16>
      %b = payload.cast %n : bf16 -> f32
      %p = arith.mulf %a, %b : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y, %z : tensor<64x32xf32>, tensor<64x32xf32>
}

// -----

// CHECK: expected a matmul operand that is loaded as f32, but there is none; use bf16x3
func.func @main(%x: tensor<64x128xf32>) -> tensor<64xf32> {
  %y = loop.nest (%i) in [64] -> tensor<64xf32> attributes {schedule = #tile.schedule<block = [64], chunk = [128], warps = 4, f32_matmul_precision = bf16x3_presplit>} {
    %s = loop.reduce add (%k) in [128] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<64x128xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<64xf32>
}
