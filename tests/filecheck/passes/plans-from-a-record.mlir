// RUN: dl-opt %s -p 'tensor-plan-fusion{record="%S/Inputs/plans.json"}' | filecheck %s --check-prefix FUSED
// RUN: dl-opt %s -p 'tensor-to-loop{record="%S/Inputs/plans.json"},plan-schedules{record="%S/Inputs/plans.json"}' | filecheck %s
// RUN: dl-opt %s -p 'tensor-to-loop{record="%S/Inputs/plans.json"},plan-schedules{target=sm_80 record="%S/Inputs/plans.json"}' | filecheck %s --check-prefix OTHER
// RUN: %check_each %s -p 'tensor-to-loop{record="%S/Inputs/plans.json"},loop-to-tile{record="%S/Inputs/plans.json"},tile-to-kernel'
// RUN: dl-opt %s --verify-diagnostics -p 'tensor-plan-fusion{record="%S/Inputs/none.json"}' | filecheck %s --check-prefix NONE
// RUN: dl-opt %s --verify-diagnostics -p 'tensor-plan-fusion{record="%s"}' | filecheck %s --check-prefix DAMAGED

// The file says that the sum is kept although its reader could compute it, and how the two nests run on sm_90a. For
// another target the model decides.

// FUSED:    tensor.reduce add %x over [1] {fuse.root}
// FUSED:    math.exp %s {fuse.root}
// CHECK:    schedule = #tile.schedule<block = [2], chunk = [16], warps = 2>
// CHECK:    schedule = #tile.schedule<block = [32], warps = 1>
// OTHER:    schedule = #tile.schedule<block = [{{[0-9]+}}], chunk = [64], warps = {{[0-9]+}}>
// OTHER:    schedule = #tile.schedule<block = [64], warps = 1>
// NONE:     {{.*}}none.json: error: record: No such file or directory
// DAMAGED:  {{.*}}plans-from-a-record.mlir: error: record: is damaged:
func.func @main(%x: tensor<64x64xf32>) -> tensor<64xf32> {
  %s = tensor.reduce add %x over [1] : tensor<64x64xf32> -> tensor<64xf32>
  %y = math.exp %s : tensor<64xf32>
  func.return %y : tensor<64xf32>
}
