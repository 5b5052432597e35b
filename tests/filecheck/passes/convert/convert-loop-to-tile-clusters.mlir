// RUN: dl-opt %s --split-input-file --verify-diagnostics -p convert-loop-to-tile | filecheck %s

// Two blocks take the chunks of a row in turn. Each has a maximum of its chunks; both get both, and the greater one.

// CHECK-LABEL: tile.kernel @k0({{.*}}) blocks (%i, %rank) in [8, 2] warps 2 cluster 2
// CHECK:         scf.for %k = %c0 to %c3 step %c1
// CHECK-NEXT:      tile.load %x[%i, d0 + %k * 128 + %rank * 64] where 0 <= {{.*}} < 300
// CHECK:         %m_4 = tile.reduce max %m_1 over [0] : tensor<64xf32> -> f32
// CHECK-NEXT:    %m_5 = tile.cluster_allgather %m_4 : f32 -> tensor<2xf32>
// CHECK-NEXT:    %m_6 = tile.reduce max %m_5 over [0] : tensor<2xf32> -> f32
// CHECK:         scf.for %j = %c0 to %c3 step %c1 {
// CHECK:           tile.store %c, %y[%i, d0 + %j * 128 + %rank * 64]
func.func @used(%x: tensor<8x300xf32>) -> tensor<8x300xf32> {
  %y = loop.nest (%i, %j) in [8, 300] -> tensor<8x300xf32>
         attributes {schedule = #tile.schedule<block = [1, 64], serial = [1], chunk = [64], warps = 2, cluster = 2>} {
    %m = loop.reduce max (%k) in [300] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<8x300xf32>
      loop.yield %a : f32
    }
    %b = loop.load %x[%i, %j] : tensor<8x300xf32>
    %c = arith.subf %b, %m : f32
    loop.yield %c : f32
  }
  func.return %y : tensor<8x300xf32>
}

// -----

// One tile a block, results of the row alone: they are the same in all blocks, of which the first writes them. What the
// blocks have of the sum is in frames of their own; it moves to that of the whole before it is added.

// CHECK-LABEL: tile.kernel @k0({{.*}}) blocks (%i, %rank) in [8, 4] warps 2 cluster 4
// CHECK:         %a = tile.load %x[%i, d0 + %rank * 64]
// CHECK-NEXT:    %m = tile.reduce max %a over [0] : tensor<64xf32> -> f32
// CHECK:         %s = tile.reduce add %e over [0] : tensor<64xf32> -> f32
// CHECK-NEXT:    %m_2, %s_1 = tile.cluster_allgather %m, %s : f32, f32 -> tensor<4xf32>, tensor<4xf32>
// CHECK-NEXT:    %hi = tile.reduce max %m_2 over [0] : tensor<4xf32> -> f32
// CHECK-NEXT:    %hi_1 = tile.broadcast %hi along [0] : f32 -> tensor<4xf32>
// CHECK-NEXT:    %[[BY:.*]] = arith.subf %m_2, %hi_1 : tensor<4xf32>
// CHECK-NEXT:    %[[FACTOR:.*]] = math.exp %[[BY]] : tensor<4xf32>
// CHECK-NEXT:    %[[MOVED:.*]] = arith.mulf %s_1, %[[FACTOR]] : tensor<4xf32>
// CHECK-NEXT:    %sum = tile.reduce add %[[MOVED]] over [0] : tensor<4xf32> -> f32
// CHECK:         tile.store %{{.*}}, %y[%i] where 0 <= %rank < 1
func.func @staged(%x: tensor<8x256xf32>) -> tensor<8xf32> {
  %y = loop.nest (%i) in [8] -> tensor<8xf32>
         attributes {schedule = #tile.schedule<block = [1], chunk = [64, 64], warps = 2, cluster = 4>} {
    %hi, %sum = loop.staged_reduce -> f32, f32 stages {
      %m = loop.reduce max (%k) in [256] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<8x256xf32>
        loop.yield %a : f32
      }
      %s = loop.reduce add (%k) in [256] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<8x256xf32>
        %d = arith.subf %a, %m : f32
        %e = math.exp %d : f32
        loop.yield %e : f32
      }
      loop.yield %m, %s : f32, f32
    } rescale (%m0: f32, %s0: f32, %m1: f32, %s1: f32) {
      %d = arith.subf %m0, %m1 : f32
      %f = math.exp %d : f32
      %t = arith.mulf %s0, %f : f32
      loop.yield %m0, %t : f32, f32
    }
    %l = math.log %sum : f32
    %r = arith.addf %l, %hi : f32
    loop.yield %r : f32
  }
  func.return %y : tensor<8xf32>
}

// -----

// CHECK: loop.nest: cluster: no reduction has 4 chunks, one for each block of a cluster
func.func @short(%x: tensor<8x100xf32>) -> tensor<8xf32> {
  %y = loop.nest (%i) in [8] -> tensor<8xf32>
         attributes {schedule = #tile.schedule<block = [1], chunk = [64], warps = 2, cluster = 4>} {
    %m = loop.reduce max (%k) in [100] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<8x100xf32>
      loop.yield %a : f32
    }
    loop.yield %m : f32
  }
  func.return %y : tensor<8xf32>
}

// -----

// The blocks of a cluster take the chunks of a product in turn. Each gets 16 of 64 rows of the sums of all blocks, and
// loads, computes and stores what follows for these.

// CHECK-LABEL: tile.kernel @k0({{.*}}) blocks (%i, %rank) in [2, 4] warps 4 cluster 4
// CHECK:         %s_1 = scf.for %k = %c0 to %c2 step %c1 iter_args(%s_2 = %s)
// CHECK-NEXT:      tile.load %x[d0 + %i * 64, d1 + %k * 256 + %rank * 64]
// CHECK:         %s_4 = tile.cluster_reduce_scatter add %s_1 along 0 : tensor<64x32xf32> -> tensor<16x32xf32>
// CHECK-NEXT:    %v = tile.load %b[d0 + %i * 64 + %rank * 16] : {{.*}} -> tensor<16xf32>
// CHECK-NEXT:    tile.broadcast %v along [1] : tensor<16xf32> -> tensor<16x32xf32>
// CHECK:         tile.store %{{.*}}, %y[d0 + %i * 64 + %rank * 16, d1] : tensor<16x32xf32>
func.func @sums(%x: tensor<128x512xf32>, %w: tensor<512x32xf32>, %b: tensor<128xf32>) -> tensor<128x32xf32> {
  %y = loop.nest (%i, %j) in [128, 32] -> tensor<128x32xf32>
         attributes {schedule = #tile.schedule<block = [64, 32], chunk = [64], warps = 4, cluster_k = 4>} {
    %v = loop.load %b[%i] : tensor<128xf32>
    %s = loop.reduce add (%k) in [512] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<128x512xf32>
      %1 = loop.load %w[%k, %j] : tensor<512x32xf32>
      %2 = arith.mulf %0, %1 : f32
      loop.yield %2 : f32
    }
    %r = arith.addf %s, %v : f32
    loop.yield %r : f32
  }
  func.return %y : tensor<128x32xf32>
}

// -----

// Of 24 rows a tile of 64 has mostly padding, so the blocks divide its columns.

// CHECK-LABEL: tile.kernel @k0({{.*}}) blocks (%rank) in [2] warps 4 cluster 2
// CHECK:         tile.cluster_reduce_scatter add %{{.*}} along 1 : tensor<64x32xf32> -> tensor<64x16xf32>
func.func @columns(%x: tensor<24x512xf32>, %w: tensor<512x32xf32>) -> tensor<24x32xf32> {
  %y = loop.nest (%i, %j) in [24, 32] -> tensor<24x32xf32>
         attributes {schedule = #tile.schedule<block = [64, 32], chunk = [64], warps = 4, cluster_k = 2>} {
    %s = loop.reduce add (%k) in [512] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<24x512xf32>
      %1 = loop.load %w[%k, %j] : tensor<512x32xf32>
      %2 = arith.mulf %0, %1 : f32
      loop.yield %2 : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<24x32xf32>
}

// -----

// CHECK: loop.nest: cluster_k: no tile of the result has 4 parts of two elements, one part for each block of a cluster
func.func @small(%x: tensor<4x512xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32>
         attributes {schedule = #tile.schedule<block = [4], chunk = [64], warps = 2, cluster_k = 4>} {
    %s = loop.reduce add (%k) in [512] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<4x512xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// CHECK: loop.nest: cluster_k: no reduction has 4 chunks, one for each block of a cluster
func.func @short(%x: tensor<64x100xf32>) -> tensor<64xf32> {
  %y = loop.nest (%i) in [64] -> tensor<64xf32>
         attributes {schedule = #tile.schedule<block = [64], chunk = [64], warps = 2, cluster_k = 4>} {
    %s = loop.reduce add (%k) in [100] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<64x100xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<64xf32>
}

// -----

// CHECK: loop.nest: cluster_k: one reduction uses the result of another one
func.func @centred(%x: tensor<64x256xf32>) -> tensor<64xf32> {
  %y = loop.nest (%i) in [64] -> tensor<64xf32>
         attributes {schedule = #tile.schedule<block = [64], chunk = [32, 32], warps = 2, cluster_k = 2>} {
    %m = loop.reduce max (%k) in [256] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<64x256xf32>
      loop.yield %a : f32
    }
    %s = loop.reduce add (%k) in [256] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<64x256xf32>
      %c = arith.subf %a, %m : f32
      loop.yield %c : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<64xf32>
}
