// RUN: dl-opt %s -p 'plan-schedules{target=cpu}' | filecheck %s --check-prefix CPU
// RUN: dl-opt %s -p 'plan-schedules{target=sm_90a}' | filecheck %s --check-prefix GPU
// RUN: dl-opt %s -p 'plan-schedules{target=sm_90a block=1,256 warps=2}' --verify-diagnostics | filecheck %s --check-prefix GRID

// One block walks along a row that is longer than a tile; blocks on the grid cannot carry a scan.
// CPU: schedule = #tile.schedule<block = [1, 4096], serial = [1], warps = 1, lanes = 1>
// GPU: schedule = #tile.schedule<block = [1, {{[0-9]+}}], serial = [1], warps =
// GRID: one block walks along the index of a scan, and along no other one: serial = [1]
func.func @main(%x: tensor<64x60000xf32>) -> tensor<64x60000xf32> {
  %y = loop.nest (%i, %j) in [64, 60000] -> tensor<64x60000xf32> {
    %a = loop.load %x[%i, %j] : tensor<64x60000xf32>
    %s = loop.scan add %a along %j : f32
    loop.yield %s : f32
  }
  func.return %y : tensor<64x60000xf32>
}
