// RUN: %diagnostics

// CHECK: error: kernel.cp_async: expected a copy from global memory to a one-dimensional shared buffer, but got memref<64xf32> to memref<64xf32>
kernel.func @k(%x: memref<64xf32>, %y: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  kernel.cp_async %x[%i] to %y[%i] : memref<64xf32>, memref<64xf32>
}

// -----

// CHECK: error: kernel.cp_async: expected a copy of 4, 8 or 16 bytes, but got 1 elements of bf16
kernel.func @k(%x: memref<64xbf16>) grid [1] warps 1 {
  %i = kernel.id lane
  %s = kernel.shared : memref<64xbf16, "shared">
  kernel.cp_async %x[%i] to %s[%i] : memref<64xbf16>, memref<64xbf16, "shared">
}

// -----

// CHECK: error: kernel.cp_async: expected the first 1 register bits to be contiguous in the target, but got steps [2]
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %s = kernel.shared : memref<64xf32, "shared">
  kernel.cp_async %x[%i] regs [[1]] vec 2 to %s[%i] regs [[2]] : memref<64xf32>, memref<64xf32, "shared">
}

// -----

// CHECK: error: kernel.cp_async: expected one element type of memory and registers, but got f32 and i32
kernel.func @k(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %s = kernel.shared : memref<64xi32, "shared">
  kernel.cp_async %x[%i] to %s[%i] : memref<64xf32>, memref<64xi32, "shared">
}

// -----

// CHECK: error: kernel.subview: expected a part no larger than its buffer memref<64xf32, "shared">, but got memref<128xf32, "shared">
kernel.func @k() grid [1] warps 1 {
  %i = arith.constant 0 : index
  %r = kernel.shared : memref<64xf32, "shared">
  %s = kernel.subview %r[%i] : memref<64xf32, "shared"> -> memref<128xf32, "shared">
}

// -----

// CHECK: error: {{.*}}expected 0 to 7 pending groups, but got 9
kernel.func @k() grid [1] warps 1 {
  kernel.async_wait 9
}
