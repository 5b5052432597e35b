// RUN: dl-opt %s -p "plan-schedules{strategy=simple target=sm_80}" | filecheck %s
// RUN: dl-opt %s -p "plan-schedules{strategy=simple target=cpu}" | filecheck %s --check-prefix CORE

// CHECK-LABEL: @kinds
func.func @kinds(%x: tensor<96x2048xf32>, %w: tensor<2048x80xf32>) -> (tensor<96x80xf32>, tensor<96x2048xf32>, tensor<96x2048xf32>) {
  // Products alone: 64 rows by 64 columns.
  // CHECK: schedule = #tile.schedule<block = [64, 64], chunk = [16], thread = [4, 4], warps = 8>
  // CORE: schedule = #tile.schedule<block = [64, 64], chunk = [16], warps = 1, lanes = 1>
  %p = loop.nest (%i, %j) in [96, 80] -> tensor<96x80xf32> {
    %s = loop.reduce add (%k) in [2048] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<96x2048xf32>
      %b = loop.load %w[%k, %j] : tensor<2048x80xf32>
      %c = arith.mulf %a, %b : f32
      loop.yield %c : f32
    }
    loop.yield %s : f32
  }
  // A row and the results that need its sum, 1,024 at a time.
  // CHECK: schedule = #tile.schedule<block = [1, 1024], serial = [1], chunk = [1024], warps = 4>
  // CORE: schedule = #tile.schedule<block = [1, 1024], serial = [1], chunk = [1024], warps = 1, lanes = 1>
  %n = loop.nest (%i, %j) in [96, 2048] -> tensor<96x2048xf32> {
    %s = loop.reduce add (%k) in [2048] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<96x2048xf32>
      loop.yield %a : f32
    }
    %b = loop.load %x[%i, %j] : tensor<96x2048xf32>
    %c = arith.subf %b, %s : f32
    loop.yield %c : f32
  }
  // Neighbouring elements.
  // CHECK: schedule = #tile.schedule<block = [1, 1024], warps = 4>
  %e = loop.nest (%i, %j) in [96, 2048] -> tensor<96x2048xf32> {
    %b = loop.load %x[%i, %j] : tensor<96x2048xf32>
    %c = arith.addf %b, %b : f32
    loop.yield %c : f32
  }
  func.return %p, %n, %e : tensor<96x80xf32>, tensor<96x2048xf32>, tensor<96x2048xf32>
}
