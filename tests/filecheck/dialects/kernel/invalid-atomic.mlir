// RUN: %diagnostics

// CHECK: error: kernel.atomic_rmw: expected f32, f64, i32 or i64 elements to combine atomically, but got i16; cast to 32 or 64 bits first
kernel.func @k(%x: memref<64xi16>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 0 : vector<1xi16>
  kernel.atomic_rmw add %v, %x[%i] : memref<64xi16>, vector<1xi16>
}

// -----

// CHECK: error: kernel.atomic_rmw: expected an atomic operation on global memory, but got shared memory
kernel.func @k() grid [1] warps 1 {
  %x = kernel.shared : memref<64xi32, "shared">
  %i = kernel.id lane
  %v = payload.constant 0 : vector<1xi32>
  kernel.atomic_rmw add %v, %x[%i] : memref<64xi32, "shared">, vector<1xi32>
}

// -----

// CHECK: kernel.atomic_rmw: expected vec 1 for an atomic operation, but got 2
kernel.func @k(%x: memref<64xi32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 0 : vector<2xi32>
  kernel.atomic_rmw add %v, %x[%i] regs [[1]] vec 2 : memref<64xi32>, vector<2xi32>
}

// -----

// CHECK: error: kernel.atomic_rmw: expected 2 coordinates, one for each dimension, also in the bases, but got 1 and []
kernel.func @k(%x: memref<64x2xi32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 0 : vector<1xi32>
  kernel.atomic_rmw add %v, %x[%i] : memref<64x2xi32>, vector<1xi32>
}
