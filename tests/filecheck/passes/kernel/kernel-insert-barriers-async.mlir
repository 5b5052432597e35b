// RUN: dl-opt %s -p kernel-insert-barriers --split-input-file --verify-diagnostics | filecheck %s

// A ring of two slots that change places: one barrier an iteration, behind the wait and in front of the copy into the
// slot that the iteration before has read. It serves both.
// CHECK-LABEL: @ring
// CHECK:         scf.for
// CHECK-NEXT:      kernel.async_wait 0
// CHECK-NEXT:      kernel.subview
// CHECK-NEXT:      kernel.subview
// CHECK-NEXT:      kernel.barrier
// CHECK-NEXT:      kernel.cp_async
// CHECK-NEXT:      kernel.async_commit
// CHECK-NEXT:      kernel.load
// CHECK-NOT:       kernel.barrier
kernel.func @ring(%x: memref<32xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %zero = payload.constant 0.0 : vector<1xf32>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %c32 = arith.constant 32 : index
  %r = kernel.shared : memref<64xf32, "shared">
  %s = kernel.subview %r[%c0] : memref<64xf32, "shared"> -> memref<32xf32, "shared">
  kernel.cp_async %x[%i] to %s[%i] : memref<32xf32>, memref<32xf32, "shared">
  kernel.async_commit
  %v, %p, %q = scf.for %k = %c0 to %c8 step %c1 iter_args(%w = %zero, %full = %c0, %free = %c32) -> (vector<1xf32>, index, index) {
    kernel.async_wait 0
    %read = kernel.subview %r[%full] : memref<64xf32, "shared"> -> memref<32xf32, "shared">
    %next = kernel.subview %r[%free] : memref<64xf32, "shared"> -> memref<32xf32, "shared">
    kernel.cp_async %x[%i] to %next[%i] : memref<32xf32>, memref<32xf32, "shared">
    kernel.async_commit
    %l = kernel.load %read[%i] : memref<32xf32, "shared"> -> vector<1xf32>
    scf.yield %l, %free, %full : vector<1xf32>, index, index
  }
}

// -----

// Slots that do not start apart may be the same: the copy that is started meets the one that is read.
// CHECK: error: kernel.load: accesses shared memory that an asynchronous copy may still write; wait for the copy first
kernel.func @same(%x: memref<32xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %zero = payload.constant 0.0 : vector<1xf32>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %r = kernel.shared : memref<64xf32, "shared">
  %v, %p, %q = scf.for %k = %c0 to %c8 step %c1 iter_args(%w = %zero, %full = %c0, %free = %c16) -> (vector<1xf32>, index, index) {
    %read = kernel.subview %r[%full] : memref<64xf32, "shared"> -> memref<32xf32, "shared">
    %next = kernel.subview %r[%free] : memref<64xf32, "shared"> -> memref<32xf32, "shared">
    kernel.cp_async %x[%i] to %next[%i] : memref<32xf32>, memref<32xf32, "shared">
    kernel.async_commit
    %l = kernel.load %read[%i] : memref<32xf32, "shared"> -> vector<1xf32>
    kernel.async_wait 0
    scf.yield %l, %free, %full : vector<1xf32>, index, index
  }
}

// -----

// One slot: its copy waits for the readers of the iteration before, and the readers for the copy of all.
// CHECK-LABEL: @single
// CHECK:         scf.for
// CHECK-NEXT:      kernel.barrier
// CHECK-NEXT:      kernel.cp_async
// CHECK-NEXT:      kernel.async_commit
// CHECK-NEXT:      kernel.async_wait 0
// CHECK-NEXT:      kernel.barrier
// CHECK-NEXT:      kernel.load
kernel.func @single(%x: memref<32xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %zero = payload.constant 0.0 : vector<1xf32>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %r = kernel.shared : memref<32xf32, "shared">
  %v = scf.for %k = %c0 to %c8 step %c1 iter_args(%w = %zero) -> (vector<1xf32>) {
    kernel.cp_async %x[%i] to %r[%i] : memref<32xf32>, memref<32xf32, "shared">
    kernel.async_commit
    kernel.async_wait 0
    %l = kernel.load %r[%i] : memref<32xf32, "shared"> -> vector<1xf32>
    scf.yield %l : vector<1xf32>
  }
}
