// RUN: dl-opt %s -p 'plan-schedules{target=sm_90a block=64,128 chunk=32 warps=4 stages=2}' | filecheck %s
// RUN: dl-opt %s -p 'plan-schedules{target=sm_90a nest=k0 atom=fma copy=sync block=32,32 thread=4,4 warps=2 chunk=16}' | filecheck %s --check-prefix FMA
// RUN: dl-opt %s --remarks -p 'plan-schedules{target=sm_90a explain block=64,128}' | filecheck %s --check-prefix EXPLAIN
// RUN: dl-opt %s --verify-diagnostics -p 'plan-schedules{target=sm_80 nest=k0 atom=wgmma}' | filecheck %s --check-prefix WGMMA
// RUN: dl-opt %s --verify-diagnostics -p 'plan-schedules{target=sm_89 nest=k0 cluster=2}' | filecheck %s --check-prefix CLUSTER
// RUN: dl-opt %s --verify-diagnostics -p 'plan-schedules{nest=k1 block=64,64}' | filecheck %s --check-prefix FIT
// RUN: dl-opt %s --verify-diagnostics -p 'plan-schedules{nest=k7}' | filecheck %s --check-prefix MISSING
// RUN: dl-opt %s --verify-diagnostics -p 'plan-schedules{nest=k0 chunk=512 stages=3}' | filecheck %s --check-prefix SHARED
// RUN: dl-opt %s --verify-diagnostics -p 'plan-schedules{block=8,8,8}' | filecheck %s --check-prefix NOWHERE
// RUN: dl-opt %s -p 'plan-schedules{block=128,256 chunk=64 warps=8 atom=wgmma stages=4}' | filecheck %s --check-prefix WORDS
// RUN: dl-opt %s --verify-diagnostics -p 'plan-schedules{nest=k0 block=128,128 chunk=64 warps=8 stages=4 blocks_per_sm=4}' | filecheck %s --check-prefix CROWD

// Options decide for the nests that they fit, or for one; the others are planned as ever. With `explain` the
// candidates are in remarks.

// CHECK:        schedule = #tile.schedule<block = [64, 128], chunk = [32], warps = 4, stages = 2, blocks_per_sm = 2, atom = wgmma, copy = tma>
// CHECK:        schedule = #tile.schedule<block = [256], warps = 1>
// FMA:          schedule = #tile.schedule<block = [32, 32], chunk = [16], thread = [4, 4], warps = 2>
// EXPLAIN:      remark: [plan-schedules] loop.nest: k0, candidate 1 of {{[0-9]+}}: {{[0-9.]+}} us ({{[0-9.]+}} predicted), limited by {{[a-z ]+}} <block = [{{[0-9]+}}, {{[0-9]+}}]
// EXPLAIN:      remark: [plan-schedules] loop.nest: k0, candidate 8 of {{[0-9]+}}:
// EXPLAIN:      remark: [plan-schedules] loop.nest: k1, candidate 1 of 3: {{[0-9.]+}} us ({{[0-9.]+}} predicted), limited by start <block = [256], warps = 1>
// EXPLAIN:      remark: [plan-schedules] loop.nest: the options do not fit k1: block: 2 extents for 1 free indices
// WGMMA:        loop.nest: atom: sm_80 has no wgmma
// CLUSTER:      loop.nest: cluster: sm_89 has no clusters of blocks
// FIT:          loop.nest: block: 2 extents for 1 free indices
// MISSING:      nest: there is no k7, of 2 nests
// NOWHERE:      loop.nest: block: 3 extents for 2 free indices
// CROWD:        loop.nest: blocks_per_sm: 4 blocks of 384 threads with some 81 registers each and 132096 bytes of shared memory do not fit on a multiprocessor of sm_90a
// WORDS:        schedule = #tile.schedule<block = [128, 256], chunk = [64], warps = 8, stages = 4, atom = wgmma, copy = tma>
// SHARED:       loop.nest: stages: the operands of matmuls take 1180672 bytes of shared memory; sm_90a has 232448 for a block
func.func @product(%x: tensor<2048x1024xbf16>, %w: tensor<2048x1024xbf16>) -> (tensor<2048x2048xf32>, tensor<2048xf32>) {
  %y = loop.nest (%i, %j) in [2048, 2048] -> tensor<2048x2048xf32> {
    %s = loop.reduce add (%k) in [1024] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<2048x1024xbf16>
      %1 = payload.cast %0 : bf16 -> f32
      %2 = loop.load %w[%j, %k] : tensor<2048x1024xbf16>
      %3 = payload.cast %2 : bf16 -> f32
      %4 = arith.mulf %1, %3 : f32
      loop.yield %4 : f32
    }
    loop.yield %s : f32
  }
  %z = loop.nest (%i) in [2048] -> tensor<2048xf32> {
    %0 = loop.load %x[%i, 0] : tensor<2048x1024xbf16>
    %1 = payload.cast %0 : bf16 -> f32
    loop.yield %1 : f32
  }
  func.return %y, %z : tensor<2048x2048xf32>, tensor<2048xf32>
}
