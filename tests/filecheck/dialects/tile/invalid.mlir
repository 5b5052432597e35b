// RUN: dl-opt %s --split-input-file --verify-diagnostics | filecheck %s

// What the verifiers of the dialect refuse, each with its place.

// CHECK: error: tile.kernel: expected memrefs, then 1 block indices, one for each extent of the grid, but got (f32, index)
tile.kernel @k(%x: f32) blocks (%i) in [1] warps 1 {
}

// -----

// CHECK: error: {{.*}}expected 1, 2, 4, 8, 16 or 32 warps in a block, but got 3
tile.kernel @k(%x: memref<8xf32>) blocks (%i) in [1] warps 3 {
}

// -----

// CHECK: error: {{.*}}expected a kernel of this module, but got @k
func.func @main(%x: tensor<8xf32>) {
  %y = tile.launch @k(%x) : (tensor<8xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: tile.launch: expected inputs and results that match the buffers of @k, (memref<8xf32>, memref<8xf32>), but got (tensor<4xf32>, tensor<8xf32>)
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
}
func.func @main(%x: tensor<4xf32>) {
  %y = tile.launch @k(%x) : (tensor<4xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: tile.load: expected both a domain and a fill value, or neither, but got only a domain
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = tile.load %x[d0] where 0 <= d0 < 4 : memref<8xf32> -> tensor<8xf32>
}

// -----

// CHECK: error: tile.load: expected both a domain and a fill value, or neither, but got only a fill value
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %z = payload.constant 0.0 : f32
  %a = tile.load %x[d0] else %z : memref<8xf32> -> tensor<8xf32>
}

// -----

// CHECK: error: tile.load: expected one element type of buffer and tile, but got f32 and i64
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = tile.load %x[d0] : memref<8xf32> -> tensor<8xi64>
}

// -----

// CHECK: error: expected a dimension of tensor<8xf32>, but got d1
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = tile.load %x[d1] : memref<8xf32> -> tensor<8xf32>
}

// -----

// CHECK: error: expected a dimension such as d0, or a value such as %i, but got s0
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = tile.load %x[d0 + s0] : memref<8xf32> -> tensor<8xf32>
}

// -----

// CHECK: error: {{.*}}expected 1 coordinates for a buffer, but got 2
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = tile.load %x[d0, d0] : memref<8xf32> -> tensor<8xf32>
}

// -----

// CHECK: error: expected a dimension of tensor<8xf32>, but got d1
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %z = payload.constant 0.0 : f32
  %a = tile.load %x[d0] where 0 <= d1 < 4 else %z : memref<8xf32> -> tensor<8xf32>
}

// -----

// CHECK: error: {{.*}}expected an index or a tile of index of the tile's shape as a symbol, but got tensor<4xindex>
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %n = tile.affine d0 : tensor<4xindex>
  %a = tile.load %x[%n] : memref<8xf32> -> tensor<8xf32>
}

// -----

// CHECK: error: tile.store: expected one element type of buffer and tile, but got f32 and i64
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = tile.load %x[d0] : memref<8xf32> -> tensor<8xf32>
  %n = payload.cast %a : tensor<8xf32> -> tensor<8xi64>
  tile.store %n, %y[d0] : tensor<8xi64>, memref<8xf32>
}

// -----

// CHECK: error: {{.*}}expected a tile of index, but got f32
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %n = tile.affine d0 : tensor<4xf32>
}

// -----

// CHECK: error: tile.broadcast: expected tensor<8xf32> with new dimensions [1], but got tensor<4x8xf32>
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = tile.load %x[d0] : memref<8xf32> -> tensor<8xf32>
  %b = tile.broadcast %a along [1] : tensor<8xf32> -> tensor<4x8xf32>
}

// -----

// CHECK: error: tile.reduce: expected tensor<8xf32> without the dimensions [0], but got tensor<8xf32>
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = tile.load %x[d0] : memref<8xf32> -> tensor<8xf32>
  %b = tile.reduce add %a over [0] : tensor<8xf32> -> tensor<8xf32>
}

// -----

// CHECK: error: tile.reduce: expected a type to compute in, but got bf16, a storage type; cast to f32 first
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = tile.load %x[d0] : memref<8xf32> -> tensor<8xf32>
  %b = payload.cast %a : tensor<8xf32> -> tensor<8xbf16>
  %c = tile.reduce add %b over [0] : tensor<8xbf16> -> bf16
}

// -----

// CHECK: error: tile.dot: expected operands [m, k] and [k, n] and an accumulator [m, n], but got tensor<4x8xf32>, tensor<4x8xf32> and tensor<4x4xf32>
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = tile.load %x[d0] : memref<8xf32> -> tensor<8xf32>
  %b = tile.broadcast %a along [0] : tensor<8xf32> -> tensor<4x8xf32>
  %z = payload.constant 0.0 : tensor<4x4xf32>
  %c = tile.dot %b, %b, %z : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
}

// -----

// CHECK: error: tile.dot: expected the accumulator's type as the result type, tensor<8x8xf32>, but got tensor<8x8xf64>
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = tile.load %x[d0] : memref<8xf32> -> tensor<8xf32>
  %b = tile.broadcast %a along [0] : tensor<8xf32> -> tensor<8x8xf32>
  %c = tile.dot %b, %b, %b : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf64>
}

// -----

// CHECK: error: tile.convert_layout: expected the shape and element type of tensor<8xf32> with #tile.layout<...>, but got tensor<8xf32>
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = tile.load %x[d0] : memref<8xf32> -> tensor<8xf32>
  %b = tile.convert_layout %a : tensor<8xf32> -> tensor<8xf32>
}

// -----

// CHECK: error: {{.*}}schedule: expected powers of two in block, but got 3
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [3]>} {
    %a = loop.load %x[%i] : tensor<4xf32>
    loop.yield %a : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// CHECK: error: {{.*}}schedule: expected warps to be one of 1, 2, 4, 8, 16, 32, but got 5
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [4], warps = 5>} {
    %a = loop.load %x[%i] : tensor<4xf32>
    loop.yield %a : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// CHECK: error: {{.*}}schedule: expected atom to be one of fma, mma, wgmma, but got fast
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [4], atom = fast>} {
    %a = loop.load %x[%i] : tensor<4xf32>
    loop.yield %a : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// CHECK: error: {{.*}}schedule: expected copy to be one of sync, cp_async, tma, but got slow
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [4], copy = slow>} {
    %a = loop.load %x[%i] : tensor<4xf32>
    loop.yield %a : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// CHECK: error: {{.*}}schedule: expected stages of at least 1, but got 0
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [4], stages = 0>} {
    %a = loop.load %x[%i] : tensor<4xf32>
    loop.yield %a : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// CHECK: error: schedule: expected positions of free indices below 1 in serial, but got [1]
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [4], serial = [1]>} {
    %a = loop.load %x[%i] : tensor<4xf32>
    loop.yield %a : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// CHECK: error: {{.*}}schedule: unknown or repeated decision 'blocks'
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<blocks = [4]>} {
    %a = loop.load %x[%i] : tensor<4xf32>
    loop.yield %a : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// CHECK: error: schedule: expected a decision 'block', but got none
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<warps = 4>} {
    %a = loop.load %x[%i] : tensor<4xf32>
    loop.yield %a : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// CHECK: error: tile.dot: expected bf16, f16 or f32 operands with an f32 accumulator (or all f64), for atom mma, but got f64, f64, f32
tile.kernel @k(%x: memref<8xf64>, %y: memref<8xf64>) blocks (%i) in [1] warps 1 {
  %a = payload.constant 0.0 : tensor<16x16xf64>
  %b = payload.constant 0.0 : tensor<16x16xf32>
  %c = tile.dot %a, %a, %b atom "mma" : tensor<16x16xf64>, tensor<16x16xf64>, tensor<16x16xf32> -> tensor<16x16xf32>
}

// -----

// CHECK: error: {{.*}}expected an atom of fma, mma, wgmma, but got tpu
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = payload.constant 0.0 : tensor<16x16xf32>
  %c = tile.dot %a, %a, %a atom "tpu" : tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32> -> tensor<16x16xf32>
}

// -----

// CHECK: error: tile.launch: expected inputs and results that match the buffers of @k, (memref<?xf32, #payload.extents<#payload.symbol<s0[1:5]>>>, memref<8xf32>), but got (tensor<?xf32, #payload.extents<#payload.symbol<s1[1:5]>>>, tensor<8xf32>)
tile.kernel @k(%x: memref<?xf32, #payload.extents<#payload.symbol<s0[1:5]>>>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
}
func.func @main(%x: tensor<?xf32, #payload.extents<#payload.symbol<s1[1:5]>>>) {
  %y = tile.launch @k(%x) : (tensor<?xf32, #payload.extents<#payload.symbol<s1[1:5]>>>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: tile.kernel: expected a cluster of 1, 2, 4 or 8 blocks, but got 6
tile.kernel @k(%x: memref<4xf32>) blocks (%i) in [6] warps 1 cluster 6 {
  %zero = payload.constant 0.0 : f32
}

// -----

// CHECK: error: tile.kernel: expected a last extent of the grid of whole clusters of 4 blocks, but got the grid [8, 6]
tile.kernel @k(%x: memref<4xf32>) blocks (%i, %j) in [8, 6] warps 1 cluster 4 {
  %zero = payload.constant 0.0 : f32
}

// -----

// CHECK: error: {{.*}}schedule: expected cluster to be one of 1, 2, 4, 8, but got 3
module {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [4], cluster = 3>} {
    %z = payload.constant 0.0 : f32
    loop.yield %z
  }
}

// -----

// CHECK: error: {{.*}}schedule: expected cluster_k to be one of 1, 2, 4, 8, but got 3
module {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [4], cluster_k = 3>} {
    %z = payload.constant 0.0 : f32
    loop.yield %z
  }
}

// -----

// CHECK: error: {{.*}}expected via one of registers, shuffles, shared, but got post
tile.kernel @k(%x: memref<8xf32>, %y: memref<8xf32>) blocks (%i) in [1] warps 1 {
  %a = payload.constant 0.0 : tensor<32xf32, #tile.layout<reg = [], lane = [[1], [2], [4], [8], [16]], warp = []>>
  %b = tile.convert_layout %a via "post" : tensor<32xf32, #tile.layout<reg = [], lane = [[1], [2], [4], [8], [16]], warp = []>> -> tensor<32xf32, #tile.layout<reg = [], lane = [[2], [1], [4], [8], [16]], warp = []>>
}

// -----

// CHECK: error: {{.*}}expected warps of 32 lanes, or one warp of one lane, but got 1 warps of 16 lanes
tile.kernel @k(%x: memref<8xf32>) blocks (%i) in [1] warps 1 lanes 16 {
}

// -----

// CHECK: error: {{.*}}schedule: expected lanes to be one of 1, 32, but got 2
module {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [4], lanes = 2>} {
    %z = payload.constant 0.0 : f32
    loop.yield %z
  }
}
