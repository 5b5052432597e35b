// RUN: %diagnostics

// CHECK: error: kernel.atomic_rmw: nothing combines i16 in memory: cast to 32 or 64 bits first
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

// CHECK: expected vec 1 for an atomic operation
kernel.func @k(%x: memref<64xi32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 0 : vector<2xi32>
  kernel.atomic_rmw add %v, %x[%i] regs [[1]] vec 2 : memref<64xi32>, vector<2xi32>
}

// -----

// CHECK: error: kernel.atomic_rmw: one coordinate for each of 2 dimensions
kernel.func @k(%x: memref<64x2xi32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 0 : vector<1xi32>
  kernel.atomic_rmw add %v, %x[%i] : memref<64x2xi32>, vector<1xi32>
}
