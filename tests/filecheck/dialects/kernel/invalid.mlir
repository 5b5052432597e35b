// RUN: %diagnostics

// CHECK: error: kernel.func: expected memrefs as the arguments of a kernel, but got f32
kernel.func @k(%x: f32) grid [1] warps 1 {}

// -----

// CHECK: error: kernel.func: expected 1, 2, 4, 8, 16 or 32 warps in a block without partitions, but got 3
kernel.func @k(%x: memref<4xf32>) grid [1] warps 3 {}

// -----

// CHECK: error: kernel.func: expected a grid of 1 to 2^31 - 1 blocks, but got 0
kernel.func @k(%x: memref<4xf32>) grid [0] warps 1 {}

// -----

// CHECK: error: kernel.shared: expected a memref in space "shared", but got memref<8xf32>
kernel.func @k() grid [1] warps 1 {
  %s = kernel.shared : memref<8xf32>
}

// -----

// CHECK: error: kernel.shared: expected groups of at least one warp, but got 0
kernel.func @k() grid [1] warps 1 {
  %s = kernel.shared warp_group_private 0 : memref<8xf32, "shared">
}

// -----

// CHECK: error: kernel.shuffle_xor: expected a mask of 1 to 31, but got 32
kernel.func @k() grid [1] warps 1 {
  %v = payload.constant 0.0 : vector<2xf32>
  %s = kernel.shuffle_xor %v by 32 : vector<2xf32>
}

// -----

// CHECK: error: kernel.shuffle_xor: result 'result' at position 0 does not verify: attribute vector<2xf32> expected from variable 'T', but got vector<4xf32>
kernel.func @k() grid [1] warps 1 {
  %v = payload.constant 0.0 : vector<2xf32>
  %s = "kernel.shuffle_xor"(%v) <{"mask" = #builtin.int<1>}> : (vector<2xf32>) -> vector<4xf32>
}

// -----

// CHECK: error: kernel.reduce_registers: expected register bits from 0 to 1 of 4 registers, but got [2]
kernel.func @k() grid [1] warps 1 {
  %v = payload.constant 0.0 : vector<4xf32>
  %s = kernel.reduce_registers add %v over [2] : vector<4xf32> -> vector<2xf32>
}

// -----

// CHECK: error: kernel.reduce_registers: expected 2 registers after the reduction of 1 bits of 4 registers, but got vector<1xf32>
kernel.func @k() grid [1] warps 1 {
  %v = payload.constant 0.0 : vector<4xf32>
  %s = kernel.reduce_registers add %v over [1] : vector<4xf32> -> vector<1xf32>
}

// -----

// CHECK: error: kernel.reduce_registers: expected a type to compute in, but got bf16, a storage type; cast to f32 first
kernel.func @k() grid [1] warps 1 {
  %v = payload.constant 0.0 : vector<4xbf16>
  %s = kernel.reduce_registers add %v over [1] : vector<4xbf16> -> vector<2xbf16>
}

// -----

// CHECK: error: kernel.shuffle_registers: expected the registers of vector<2xf32> from 0 to 3, but got [0, 4]
kernel.func @k() grid [1] warps 1 {
  %v = payload.constant 0.0 : vector<4xf32>
  %s = kernel.shuffle_registers %v from [0, 4] : vector<4xf32> -> vector<2xf32>
}

// -----

// CHECK: error: kernel.splat: expected registers of f32, but got vector<4xi32>
kernel.func @k() grid [1] warps 1 {
  %v = payload.constant 0.0 : f32
  %s = kernel.splat %v : f32 -> vector<4xi32>
}

// -----

// CHECK: error: kernel.extract: expected a register of vector<4xf32>, but got 4
kernel.func @k() grid [1] warps 1 {
  %v = payload.constant 0.0 : vector<4xf32>
  %s = kernel.extract %v[4] : vector<4xf32>
}

// -----

// CHECK: error: kernel.indices: expected one step for each bit of the register number of vector<4xindex>, but got 1 steps
kernel.func @k() grid [1] warps 1 {
  %v = kernel.id lane
  %s = kernel.indices %v steps [1] : vector<4xindex>
}

// -----

// CHECK: error: kernel.outer_fma: expected rows and cols that number 4 registers from 2 and 2, but got [1] and [1]
kernel.func @k() grid [1] warps 1 {
  %a = payload.constant 0.0 : vector<2xf32>
  %c = payload.constant 0.0 : vector<4xf32>
  %s = kernel.outer_fma %a, %a, %c rows [1] cols [1] : vector<2xf32>, vector<2xf32>, vector<4xf32>
}

// -----

// CHECK: error: kernel.outer_fma: expected one element type of operands and accumulator, but got i32 and f32
kernel.func @k() grid [1] warps 1 {
  %a = payload.constant 0 : vector<2xi32>
  %c = payload.constant 0.0 : vector<4xf32>
  %s = kernel.outer_fma %a, %a, %c rows [1] cols [0] : vector<2xi32>, vector<2xi32>, vector<4xf32>
}

// -----

// CHECK: error: kernel.func: expected a grid of 1 to 2^31 - 1 blocks, but got 0
kernel.func @k(%x: memref<4xf32>) grid [#payload.symbol<s0[1:5]> / 2, 0] warps 1 {}

// -----

// CHECK: error: kernel.shuffle: expected one lane_xor for each bit of the register number, but got 1
kernel.func @k() grid [1] warps 1 {
  %v = payload.constant 0.0 : vector<4xf32>
  %s = kernel.shuffle %v lane_xor [1] : vector<4xf32>
}

// -----

// CHECK: error: kernel.shuffle: expected lane_xor of 0 to 31, but got [0, 32]
kernel.func @k() grid [1] warps 1 {
  %v = payload.constant 0.0 : vector<4xf32>
  %s = kernel.shuffle %v lane_xor [0, 32] : vector<4xf32>
}

// -----

// CHECK: error: kernel.shuffle: result 'result' at position 0 does not verify: attribute vector<2xf32> expected from variable 'T', but got vector<4xf32>
kernel.func @k() grid [1] warps 1 {
  %v = payload.constant 0.0 : vector<2xf32>
  %s = "kernel.shuffle"(%v) <{lane_xor = array<i64: 1>}> : (vector<2xf32>) -> vector<4xf32>
}

// -----

// CHECK: error: kernel.permute_registers: expected 5 reg_xor below 4, a power of two, but got [1, 2, 4, 0, 0]
kernel.func @k() grid [1] warps 1 {
  %l = kernel.id lane
  %v = payload.constant 0.0 : vector<4xf32>
  %s = kernel.permute_registers %v by %l reg_xor [1, 2, 4, 0, 0] : vector<4xf32>
}

// -----

// CHECK: error: kernel.permute_registers: expected 5 reg_xor below 2, a power of two, but got [1, 0, 0, 0]
kernel.func @k() grid [1] warps 1 {
  %l = kernel.id lane
  %v = payload.constant 0.0 : vector<2xf32>
  %s = kernel.permute_registers %v by %l reg_xor [1, 0, 0, 0] : vector<2xf32>
}

// -----

// CHECK: error: kernel.func: expected at most {{.*}} threads of resident blocks, but got 3 blocks of 1024 threads
kernel.func @k() grid [1] warps 32 blocks_per_sm 3 {
}

// -----

// CHECK: error: kernel.func: expected at most {{.*}} threads of resident blocks, but got 0 blocks of 32 threads
kernel.func @k() grid [1] warps 1 blocks_per_sm 0 {
}

// -----

// CHECK: error: kernel.func: expected warps of 32 lanes, or one warp of one lane, but got 2 warps of 1 lanes
kernel.func @k() grid [1] warps 2 lanes 1 {
}

// -----

// CHECK: error: {{.*}}expected operands of depth 8 for a product of 128 numbers, but got 32 and 64 numbers
kernel.func @k() grid [1] warps 1 lanes 1 {
  %a = payload.constant 0.0 : vector<32xf32>
  %b = payload.constant 0.0 : vector<64xf32>
  %c = payload.constant 0.0 : vector<128xf32>
  %d = kernel.panel_fma %a, %b, %c depth 8 : vector<32xf32>, vector<64xf32>, vector<128xf32>
}

// -----

// CHECK: error: kernel.panel_fma: expected one element type of operands and accumulator, but got f64 and f32
kernel.func @k() grid [1] warps 1 lanes 1 {
  %a = payload.constant 0.0 : vector<32xf64>
  %b = payload.constant 0.0 : vector<64xf64>
  %c = payload.constant 0.0 : vector<128xf32>
  %d = kernel.panel_fma %a, %b, %c depth 4 : vector<32xf64>, vector<64xf64>, vector<128xf32>
}
