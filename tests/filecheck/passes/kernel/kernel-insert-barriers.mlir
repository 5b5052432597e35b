// RUN: dl-opt %s -p kernel-insert-barriers --split-input-file --remarks --verify-diagnostics | filecheck %s

// Written by some threads, read by others: one barrier, as late as possible, in front of the read.
// CHECK-LABEL: @read_after_write
// CHECK: kernel.store
// CHECK-NEXT: math.exp
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: kernel.load
// CHECK-NOT: kernel.barrier
kernel.func @read_after_write(%y: memref<32xf32>) grid [1] warps 1 {
  %s = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %v = payload.constant 1.0 : vector<1xf32>
  kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
  %e = math.exp %v : vector<1xf32>
  %w = kernel.load %s[%i] : memref<32xf32, "shared"> -> vector<1xf32>
  %u = kernel.load %s[%i] : memref<32xf32, "shared"> -> vector<1xf32>
}

// -----

// Two buffers without offsets are apart: one barrier serves both pairs.
// CHECK-LABEL: @one_for_two
// CHECK-COUNT-2: kernel.store
// CHECK: kernel.barrier
// CHECK-NEXT: kernel.load
// CHECK-NEXT: kernel.load
// CHECK-NOT: kernel.barrier
kernel.func @one_for_two(%y: memref<32xf32>) grid [1] warps 1 {
  %s = kernel.shared : memref<32xf32, "shared">
  %t = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %v = payload.constant 1.0 : vector<1xf32>
  kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
  kernel.store %v, %t[%i] : memref<32xf32, "shared">, vector<1xf32>
  %w = kernel.load %s[%i] : memref<32xf32, "shared"> -> vector<1xf32>
  %u = kernel.load %t[%i] : memref<32xf32, "shared"> -> vector<1xf32>
}

// -----

// Two buffers on the same bytes are the same memory: what reads the first must be done before the second is written.
// CHECK-LABEL: @aliases
// CHECK: kernel.load
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: kernel.store
kernel.func @aliases(%y: memref<32xf32>) grid [1] warps 1 shared 128 {
  %s = kernel.shared at 0 : memref<32xf32, "shared">
  %t = kernel.shared at 64 : memref<16xf32, "shared">
  %i = kernel.id warp
  %v = kernel.load %s[%i] : memref<32xf32, "shared"> -> vector<1xf32>
  kernel.store %v, %t[%i] : memref<16xf32, "shared">, vector<1xf32>
}

// -----

// Neighbours in memory that do not overlap need nothing.
// CHECK: remark: [kernel-insert-barriers] kernel.func: no two accesses to shared memory need a barrier between them
// CHECK-LABEL: @neighbours
// CHECK-NOT: kernel.barrier
kernel.func @neighbours(%y: memref<32xf32>) grid [1] warps 1 shared 128 {
  %s = kernel.shared at 0 : memref<16xf32, "shared">
  %t = kernel.shared at 64 : memref<16xf32, "shared">
  %i = kernel.id warp
  %v = kernel.load %s[%i] : memref<16xf32, "shared"> -> vector<1xf32>
  kernel.store %v, %t[%i] : memref<16xf32, "shared">, vector<1xf32>
}

// -----

// Written twice: which value stays depends on the order.
// CHECK-LABEL: @write_after_write
// CHECK: kernel.store
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: kernel.store
kernel.func @write_after_write(%y: memref<32xf32>) grid [1] warps 1 {
  %s = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %v = payload.constant 1.0 : vector<1xf32>
  kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
  kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
}

// -----

// A loop that writes and reads needs two: between them, and because the next iteration writes what this one reads.
// CHECK-LABEL: @back_edge
// CHECK: scf.for
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: kernel.store
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: kernel.load
// CHECK-NOT: kernel.barrier
kernel.func @back_edge(%y: memref<32xf32>) grid [1] warps 1 {
  %s = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %v = payload.constant 1.0 : vector<1xf32>
  %0 = payload.constant 0 : index
  %1 = payload.constant 1 : index
  %8 = payload.constant 8 : index
  scf.for %k = %0 to %8 step %1 {
    kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
    %w = kernel.load %s[%i] : memref<32xf32, "shared"> -> vector<1xf32>
  }
}

// -----

// Two buffers in turn: the read of one iteration and the write of the next have the other buffer's barrier between them.
// CHECK-LABEL: @in_turn
// CHECK: scf.for
// CHECK-NEXT: kernel.store
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: kernel.load
// CHECK-NEXT: kernel.store
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: kernel.load
// CHECK-NOT: kernel.barrier
kernel.func @in_turn(%y: memref<32xf32>) grid [1] warps 1 {
  %s = kernel.shared : memref<32xf32, "shared">
  %t = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %v = payload.constant 1.0 : vector<1xf32>
  %0 = payload.constant 0 : index
  %1 = payload.constant 1 : index
  %8 = payload.constant 8 : index
  scf.for %k = %0 to %8 step %1 {
    kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
    %w = kernel.load %s[%i] : memref<32xf32, "shared"> -> vector<1xf32>
    kernel.store %w, %t[%i] : memref<32xf32, "shared">, vector<1xf32>
    %u = kernel.load %t[%i] : memref<32xf32, "shared"> -> vector<1xf32>
  }
}

// -----

// Written before a loop that only reads: one barrier, in front of the loop rather than in each iteration.
// CHECK-LABEL: @around_a_loop
// CHECK: kernel.store
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: scf.for
// CHECK-NEXT: kernel.load
// CHECK-NOT: kernel.barrier
kernel.func @around_a_loop(%y: memref<32xf32>) grid [4] warps 1 {
  %s = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %n = kernel.id block
  %v = payload.constant 1.0 : vector<1xf32>
  %0 = payload.constant 0 : index
  %1 = payload.constant 1 : index
  kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
  scf.for %k = %0 to %n step %1 {
    %w = kernel.load %s[%i] : memref<32xf32, "shared"> -> vector<1xf32>
  }
  %u = kernel.load %s[%i] : memref<32xf32, "shared"> -> vector<1xf32>
}

// -----

// After a loop that may not run, what was written before it is still pending.
// CHECK-LABEL: @after_a_loop
// CHECK: kernel.store
// CHECK-NEXT: scf.for
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: kernel.store
// CHECK-NEXT: }
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: kernel.load
kernel.func @after_a_loop(%y: memref<32xf32>) grid [4] warps 1 {
  %s = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %n = kernel.id block
  %v = payload.constant 1.0 : vector<1xf32>
  %0 = payload.constant 0 : index
  %1 = payload.constant 1 : index
  kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
  scf.for %k = %0 to %n step %1 {
    kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
  }
  %u = kernel.load %s[%i] : memref<32xf32, "shared"> -> vector<1xf32>
}

// -----

// A barrier that is there already counts.
// CHECK-LABEL: @given
// CHECK-COUNT-1: kernel.barrier
// CHECK-NOT: kernel.barrier
kernel.func @given(%y: memref<32xf32>) grid [1] warps 1 {
  %s = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %v = payload.constant 1.0 : vector<1xf32>
  kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
  kernel.barrier
  %u = kernel.load %s[%i] : memref<32xf32, "shared"> -> vector<1xf32>
}

// -----

// Under a condition no barrier is possible: it goes in front, and what would need one inside is refused.
// CHECK-LABEL: @conditional
// CHECK: kernel.store
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: scf.if
// CHECK-NOT: kernel.barrier
kernel.func @conditional(%y: memref<32xf32>) grid [1] warps 1 {
  %s = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %c = payload.constant true : i1
  %v = payload.constant 1.0 : vector<1xf32>
  kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
  scf.if %c {
    %u = kernel.load %s[%i] : memref<32xf32, "shared"> -> vector<1xf32>
  }
}

// -----

// CHECK: error: scf.if: accesses under a condition would need a barrier between them
kernel.func @refused(%y: memref<32xf32>) grid [1] warps 1 {
  %s = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %c = payload.constant true : i1
  %v = payload.constant 1.0 : vector<1xf32>
  scf.if %c {
    kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
    %u = kernel.load %s[%i] : memref<32xf32, "shared"> -> vector<1xf32>
  }
}

// -----

// Matrices that a warp stores are written like everything else.
// CHECK-LABEL: @matrices
// CHECK:      kernel.stmatrix
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: kernel.load
// CHECK-NEXT: kernel.store
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: kernel.stmatrix
kernel.func @matrices(%x: memref<32xbf16>) grid [1] warps 4 {
  %i = kernel.id lane
  %s = kernel.shared at 0 : memref<256xbf16, "shared">
  %v = payload.constant 0.0 : vector<8xbf16>
  kernel.stmatrix count 4 %v, %s[%i] : vector<8xbf16>, memref<256xbf16, "shared">
  %w = kernel.load %s[%i] : memref<256xbf16, "shared"> -> vector<1xbf16>
  kernel.store %w, %x[%i] : memref<32xbf16>, vector<1xbf16>
  kernel.stmatrix count 4 %v, %s[%i] : vector<8xbf16>, memref<256xbf16, "shared">
}

// -----

// In every slot a thread has the same elements for itself, so nobody waits: not for what other slots hold, not for what
// is read back. Where the slots may overlap, or another thread reads, everybody waits.
// CHECK-LABEL: @own_cells
// CHECK: scf.for
// CHECK-NOT: kernel.barrier
// CHECK: scf.for
// CHECK-NOT: kernel.barrier
// CHECK: kernel.subview
// CHECK: kernel.barrier
// CHECK-NEXT: kernel.load
kernel.func @own_cells(%y: memref<32xf32>) grid [1] warps 1 {
  %s = kernel.shared : memref<128xf32, "shared">
  %i = kernel.id lane
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c32 = arith.constant 32 : index
  %c31 = arith.constant 31 : index
  %other = arith.subi %c31, %i : index
  scf.for %k = %c0 to %c4 step %c1 {
    %v = payload.constant 1.0 : vector<1xf32>
    %at = arith.muli %k, %c32 : index
    %t = kernel.subview %s[%at] : memref<128xf32, "shared"> -> memref<32xf32, "shared">
    kernel.store %v, %t[%i] : memref<32xf32, "shared">, vector<1xf32>
  }
  scf.for %k = %c0 to %c4 step %c1 {
    %at = arith.muli %k, %c32 : index
    %t = kernel.subview %s[%at] : memref<128xf32, "shared"> -> memref<32xf32, "shared">
    %w = kernel.load %t[%i] : memref<32xf32, "shared"> -> vector<1xf32>
  }
  %t = kernel.subview %s[%c0] : memref<128xf32, "shared"> -> memref<32xf32, "shared">
  %w = kernel.load %t[%other] : memref<32xf32, "shared"> -> vector<1xf32>
}

// -----

// CHECK-LABEL: @overlapping_slots
// CHECK: scf.for
// CHECK: kernel.barrier
// CHECK-NEXT: kernel.store
kernel.func @overlapping_slots(%y: memref<32xf32>) grid [1] warps 1 {
  %s = kernel.shared : memref<128xf32, "shared">
  %i = kernel.id lane
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c16 = arith.constant 16 : index
  scf.for %k = %c0 to %c4 step %c1 {
    %v = payload.constant 1.0 : vector<1xf32>
    %at = arith.muli %k, %c16 : index
    %t = kernel.subview %s[%at] : memref<128xf32, "shared"> -> memref<32xf32, "shared">
    kernel.store %v, %t[%i] : memref<32xf32, "shared">, vector<1xf32>
  }
}
