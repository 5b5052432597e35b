// RUN: %diagnostics

// CHECK: error: kernel.load: expected 2 coordinates, one for each dimension, also in the bases, but got 1 and
kernel.func @k(%x: memref<8x64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = kernel.load %x[%i] regs [[1]] : memref<8x64xf32> -> vector<2xf32>
}

// -----

// CHECK: error: kernel.load: expected bounds and a step in every basis for each of 1 checks, but got 1 bounds and
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %z = payload.constant 0.0 : f32
  %v = kernel.load %x[%i] regs [[1]] where 0 <= %i < 64 steps [[1, 2]] else %z : memref<64xf32> -> vector<2xf32>
}

// -----

// CHECK: error: kernel.load: expected an index, or a vector of index with one entry for each register, as coordinates and checks, but got i32
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = payload.constant 0 : i32
  %v = kernel.load %x[%i] regs [[1]] : memref<64xf32> -> vector<2xf32>
}

// -----

// CHECK: error: kernel.store: expected one element type of memory and registers, but got f32 and i32
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 0 : vector<2xi32>
  kernel.store %v, %x[%i] regs [[1]] : memref<64xf32>, vector<2xi32>
}

// -----

// CHECK: error: kernel.store: operand 'value' at position 0 does not verify
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 0.0 : f32
  "kernel.store"(%v, %x, %i) <{"regs" = [], "steps" = [], "lower" = [], "upper" = [], "vec" = #builtin.int<1>, "operandSegmentSizes" = array<i32: 1, 0, 1, 1, 0>}> : (f32, memref<64xf32>, index) -> ()
}

// -----

// CHECK: error: kernel.store: expected a power of two of registers, and a basis and a step for each bit of their number, but got 4 registers, 1 bases and 1 steps
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 0.0 : vector<4xf32>
  kernel.store %v, %x[%i] regs [[1]] : memref<64xf32>, vector<4xf32>
}

// -----

// CHECK: error: kernel.load: expected a vec that is a power of two up to 2 registers, but got 4
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = kernel.load %x[%i] regs [[1]] vec 4 : memref<64xf32> -> vector<2xf32>
}

// -----

// CHECK: error: kernel.load: expected the first 1 register bits to be contiguous in memory, but got
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = kernel.load %x[%i] regs [[2]] vec 2 : memref<64xf32> -> vector<2xf32>
}

// -----

// CHECK: error: kernel.load: expected checks that are constant within an access of 2 elements, but got steps
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %z = payload.constant 0.0 : f32
  %v = kernel.load %x[%i] regs [[1]] vec 2 where 0 <= %i < 64 steps [[1]] else %z : memref<64xf32> -> vector<2xf32>
}

// -----

// CHECK: error: kernel.load: expected vec 1, because coordinates differ between registers, but got 2
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %l = kernel.id lane
  %i = kernel.indices %l steps [1] : vector<2xindex>
  %v = kernel.load %x[%i] regs [[1]] vec 2 : memref<64xf32> -> vector<2xf32>
}

// -----

// CHECK: error: kernel.load: expected a shared buffer for offsets with xor, but got memref<64xf32>
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = kernel.load %x[%i] xor regs [[1]] : memref<64xf32> -> vector<2xf32>
}

// -----

// CHECK: error: kernel.load: expected both checks and a fill value, or neither, but got only checks
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = kernel.load %x[%i] regs [[1]] where 0 <= %i < 64 steps [[1]] : memref<64xf32> -> vector<2xf32>
}

// -----

// CHECK: error: kernel.load: result 'result' at position 0 does not verify: attribute i32 expected from variable 'T', but got f32
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %z = payload.constant 0 : i32
  %v = "kernel.load"(%z, %x, %i, %i) <{"regs" = [], "steps" = [], "lower" = [#builtin.int<0>], "upper" = [#builtin.int<64>], "vec" = #builtin.int<1>, "operandSegmentSizes" = array<i32: 1, 1, 1, 1>}> : (i32, memref<64xf32>, index, index) -> vector<1xf32>
}

// -----

// CHECK: error: unknown value %j
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %v = kernel.load %x[%j] : memref<64xf32> -> vector<1xf32>
}

// -----

// CHECK: error: Expected '<'
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %z = payload.constant 0.0 : f32
  %v = kernel.load %x[%i] where 0 <= %i else %z : memref<64xf32> -> vector<1xf32>
}
