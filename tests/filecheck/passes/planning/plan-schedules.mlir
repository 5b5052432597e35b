// RUN: dl-opt %s --split-input-file --verify-diagnostics -p 'plan-schedules{target=sm_90a}' | filecheck %s
// RUN: dl-opt %s --split-input-file --verify-diagnostics -p 'plan-schedules{target=sm_80}' | filecheck %s --check-prefix SM80

// A row program: one row a block, sixteen elements a thread.

// CHECK-LABEL: func.func @rows
// CHECK:         schedule = #tile.schedule<block = [1, 2048], chunk = [2048], warps = 4>
func.func @rows(%x: tensor<32x2048xf32>) -> tensor<32x2048xf32> {
  %y = loop.nest (%i, %j) in [32, 2048] -> tensor<32x2048xf32> {
    %s = loop.reduce add (%k) in [2048] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<32x2048xf32>
      loop.yield %a : f32
    }
    %b = loop.load %x[%i, %j] : tensor<32x2048xf32>
    %o = arith.divf %b, %s : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<32x2048xf32>
}

// -----

// The longest row that fits into the registers of a block is read once.

// CHECK-LABEL: func.func @longest_row
// CHECK:         schedule = #tile.schedule<block = [1, 32768], chunk = [32768], warps = 32>
func.func @longest_row(%x: tensor<320x32768xf32>) -> tensor<320x32768xf32> {
  %y = loop.nest (%i, %j) in [320, 32768] -> tensor<320x32768xf32> {
    %s = loop.reduce add (%k) in [32768] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<320x32768xf32>
      loop.yield %a : f32
    }
    %b = loop.load %x[%i, %j] : tensor<320x32768xf32>
    %o = arith.divf %b, %s : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<320x32768xf32>
}

// -----

// A row too long for a block: those of a cluster share it, and it fits into their shared memory. Without clusters, the
// reduction in chunks, then the row tile by tile in the same block; where the chunks fit, they stay.

// CHECK-LABEL: func.func @long_rows
// CHECK:         schedule = #tile.schedule<block = [1, 4096], serial = [1], chunk = [4096], warps = 8, cluster = 8, cache_rows = shared>
// SM80-LABEL:  func.func @long_rows
// SM80:          schedule = #tile.schedule<block = [1, 8192], serial = [1], chunk = [8192], warps = 8>
func.func @long_rows(%x: tensor<32x100000xf32>) -> tensor<32x100000xf32> {
  %y = loop.nest (%i, %j) in [32, 100000] -> tensor<32x100000xf32> {
    %s = loop.reduce add (%k) in [100000] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<32x100000xf32>
      loop.yield %a : f32
    }
    %b = loop.load %x[%i, %j] : tensor<32x100000xf32>
    %o = arith.divf %b, %s : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<32x100000xf32>
}

// -----

// SM80-LABEL:  func.func @kept_rows
// SM80:          schedule = #tile.schedule<block = [1, 8192], serial = [1], chunk = [8192], warps = 16, cache_rows = shared>
func.func @kept_rows(%x: tensor<32x40000xf32>) -> tensor<32x40000xf32> {
  %y = loop.nest (%i, %j) in [32, 40000] -> tensor<32x40000xf32> {
    %s = loop.reduce add (%k) in [40000] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<32x40000xf32>
      loop.yield %a : f32
    }
    %b = loop.load %x[%i, %j] : tensor<32x40000xf32>
    %o = arith.divf %b, %s : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<32x40000xf32>
}

// -----

// Short rows: several in a block. Sums of columns: neighbouring columns in a block, as memory has them.

// CHECK-LABEL: func.func @sums
// CHECK:         schedule = #tile.schedule<block = [32], chunk = [64], warps = 4>
// CHECK:         schedule = #tile.schedule<block = [8], chunk = [512], warps = 8>
func.func @sums(%x: tensor<4096x64xf32>, %w: tensor<4096x2048xf32>) -> (tensor<4096xf32>, tensor<2048xf32>) {
  %r = loop.nest (%i) in [4096] -> tensor<4096xf32> {
    %s = loop.reduce add (%k) in [64] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<4096x64xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  %c = loop.nest (%j) in [2048] -> tensor<2048xf32> {
    %s = loop.reduce add (%k) in [4096] -> f32 {
      %a = loop.load %w[%k, %j] : tensor<4096x2048xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %r, %c : tensor<4096xf32>, tensor<2048xf32>
}

// -----

// Matrix products: large tiles where there is enough work, smaller ones where there is not, and a single row is no
// matrix product but a row program. Long sums of f32 are formed in eight parts.

// CHECK-LABEL: func.func @products
// CHECK:         schedule = #tile.schedule<block = [128, 128], chunk = [16], thread = [8, 8], warps = 8, stages = 3, group_m = 8, copy = cp_async, promotion_interval = 16, promotion_memory = shared>
// CHECK:         schedule = #tile.schedule<block = [16, 16], chunk = [32], thread = [2, 2], warps = 2, stages = 2, group_m = 4, copy = cp_async>
// CHECK:         schedule = #tile.schedule<block = [1, 4], chunk = [512], warps = 4>
func.func @products(%x: tensor<2048x2048xf32>, %w: tensor<2048x2048xf32>, %a: tensor<64x64xf32>, %v: tensor<1x2048xf32>) -> (tensor<2048x2048xf32>, tensor<64x64xf32>, tensor<1x2048xf32>) {
  %y = loop.nest (%i, %j) in [2048, 2048] -> tensor<2048x2048xf32> {
    %s = loop.reduce add (%k) in [2048] -> f32 {
      %p = loop.load %x[%i, %k] : tensor<2048x2048xf32>
      %q = loop.load %w[%k, %j] : tensor<2048x2048xf32>
      %m = arith.mulf %p, %q : f32
      loop.yield %m : f32
    }
    loop.yield %s : f32
  }
  %b = loop.nest (%i, %j) in [64, 64] -> tensor<64x64xf32> {
    %s = loop.reduce add (%k) in [64] -> f32 {
      %p = loop.load %a[%i, %k] : tensor<64x64xf32>
      %q = loop.load %a[%k, %j] : tensor<64x64xf32>
      %m = arith.mulf %p, %q : f32
      loop.yield %m : f32
    }
    loop.yield %s : f32
  }
  %c = loop.nest (%i, %j) in [1, 2048] -> tensor<1x2048xf32> {
    %s = loop.reduce add (%k) in [2048] -> f32 {
      %p = loop.load %v[%i, %k] : tensor<1x2048xf32>
      %q = loop.load %w[%j, %k] : tensor<2048x2048xf32>
      %m = arith.mulf %p, %q : f32
      loop.yield %m : f32
    }
    loop.yield %s : f32
  }
  func.return %y, %b, %c : tensor<2048x2048xf32>, tensor<64x64xf32>, tensor<1x2048xf32>
}

// -----

// Elementwise: vectors along the last index; a square tile where reading and writing go along different ones.

// CHECK-LABEL: func.func @elementwise
// CHECK:         schedule = #tile.schedule<block = [1, 1024], warps = 8>
// CHECK:         schedule = #tile.schedule<block = [32, 32], warps = 8>
func.func @elementwise(%x: tensor<4096x4096xf32>) -> (tensor<4096x4096xf32>, tensor<4096x4096xf32>) {
  %y = loop.nest (%i, %j) in [4096, 4096] -> tensor<4096x4096xf32> {
    %a = loop.load %x[%i, %j] : tensor<4096x4096xf32>
    %b = math.exp %a : f32
    loop.yield %b : f32
  }
  %z = loop.nest (%i, %j) in [4096, 4096] -> tensor<4096x4096xf32> {
    %a = loop.load %x[%j, %i] : tensor<4096x4096xf32>
    loop.yield %a : f32
  }
  func.return %y, %z : tensor<4096x4096xf32>, tensor<4096x4096xf32>
}

// -----

// A schedule that is there already stays.

// CHECK-LABEL: func.func @given
// CHECK:         schedule = #tile.schedule<block = [2], warps = 1>
func.func @given(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [2], warps = 1>} {
    %a = loop.load %x[%i] : tensor<4xf32>
    loop.yield %a : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// CHECK: error: loop.nest: block: 2 extents for 1 free indices
func.func @wrong_count(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [2, 2]>} {
    %a = loop.load %x[%i] : tensor<4xf32>
    loop.yield %a : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// CHECK: error: loop.nest: block: a tile of 1048576 elements; at most 262144 are possible
func.func @too_large(%x: tensor<4x1048576xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [1], chunk = [1048576]>} {
    %s = loop.reduce add (%k) in [1048576] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<4x1048576xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// One long sum: many blocks share it.

// CHECK-LABEL: func.func @long_sum
// CHECK:         schedule = #tile.schedule<block = [], chunk = [2048], warps = 4, split_k = 256>
func.func @long_sum(%x: tensor<1048576xf32>) -> tensor<f32> {
  %y = loop.nest () in [] -> tensor<f32> {
    %s = loop.reduce add (%k) in [1048576] -> f32 {
      %a = loop.load %x[%k] : tensor<1048576xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<f32>
}

// -----

// A product of bf16: on tensor cores, operands some chunks ahead.

// CHECK-LABEL: func.func @product
// CHECK:         schedule = #tile.schedule<block = [128, 256], chunk = [64], warps = 8, stages = 4, group_m = 8, atom = wgmma, copy = tma>
func.func @product(%x: tensor<2048x1024xbf16>, %w: tensor<2048x1024xbf16>) -> tensor<2048x2048xf32> {
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
  func.return %y : tensor<2048x2048xf32>
}

// -----

// One factor is computed in f32: rounding it is not for the planner to permit.

// CHECK-LABEL: func.func @computed
// CHECK:         schedule = #tile.schedule<
// CHECK-NOT:     mma
// CHECK:         func.return
func.func @computed(%x: tensor<256x256xf32>, %w: tensor<256x256xbf16>) -> tensor<256x256xf32> {
  %y = loop.nest (%i, %j) in [256, 256] -> tensor<256x256xf32> {
    %s = loop.reduce add (%k) in [256] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<256x256xf32>
      %1 = math.exp %0 : f32
      %2 = loop.load %w[%j, %k] : tensor<256x256xbf16>
      %3 = payload.cast %2 : bf16 -> f32
      %4 = arith.mulf %1, %3 : f32
      loop.yield %4 : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<256x256xf32>
}
