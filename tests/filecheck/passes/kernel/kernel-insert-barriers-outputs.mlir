// RUN: dl-opt %s -p kernel-insert-barriers --split-input-file --verify-diagnostics | filecheck %s

// Two buffers in turns, in a loop: a box leaves behind a fence and a barrier of its warpgroup; a buffer is filled again
// once the box before the last one has been read, and the kernel ends once all have been.
// CHECK-LABEL: kernel.func @turns
// CHECK:         scf.for
// CHECK-NEXT:      kernel.bulk_wait 1 read
// CHECK-NEXT:      kernel.group_barrier 1 warps 4
// CHECK-NEXT:      kernel.store %v, %s
// CHECK-NEXT:      kernel.fence_async
// CHECK-NEXT:      kernel.group_barrier 1 warps 4
// CHECK-NEXT:      scf.if %elected {
// CHECK-NEXT:        kernel.tma_store %s
// CHECK-NEXT:        kernel.bulk_commit
// CHECK-NEXT:      }
// CHECK-NEXT:      kernel.bulk_wait 1 read
// CHECK-NEXT:      kernel.group_barrier 1 warps 4
// CHECK-NEXT:      kernel.store %v, %t
// CHECK-NEXT:      kernel.fence_async
// CHECK-NEXT:      kernel.group_barrier 1 warps 4
// CHECK-NEXT:      scf.if %elected {
// CHECK-NEXT:        kernel.tma_store %t
// CHECK-NEXT:        kernel.bulk_commit
// CHECK-NEXT:      }
// CHECK-NEXT:    }
// CHECK-NEXT:    kernel.bulk_wait 0 read
kernel.func @turns(%y: memref<64x64xf32>) grid [1] warps 8 {
  %i = kernel.id thread
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %m = kernel.tensor_map %y : memref<64x64xf32> -> !kernel.tensor_map<4x64xf32>
  %v = payload.constant 0.0 : vector<1xf32>
  %s = kernel.shared warp_group_private 4 : memref<256xf32, "shared">
  %t = kernel.shared warp_group_private 4 : memref<256xf32, "shared">
  %elected = payload.cmp eq %i, %c0 : index
  scf.for %k = %c0 to %c8 step %c1 {
    kernel.store %v, %s[%i] : memref<256xf32, "shared">, vector<1xf32>
    scf.if %elected {
      kernel.tma_store %s[%c0] to %m[%k, %c0] : memref<256xf32, "shared">, !kernel.tensor_map<4x64xf32>
      kernel.bulk_commit
    }
    kernel.store %v, %t[%i] : memref<256xf32, "shared">, vector<1xf32>
    scf.if %elected {
      kernel.tma_store %t[%c0] to %m[%k, %c0] : memref<256xf32, "shared">, !kernel.tensor_map<4x64xf32>
      kernel.bulk_commit
    }
  }
}

// -----

// All threads use one buffer, which leaves twice: they all wait, for both.
// CHECK-LABEL: kernel.func @all
// CHECK:         kernel.store
// CHECK-NEXT:    kernel.fence_async
// CHECK-NEXT:    kernel.barrier
// CHECK-NEXT:    scf.if
// CHECK:         scf.if
// CHECK:         kernel.bulk_wait 0 read
// CHECK-NEXT:    kernel.barrier
// CHECK-NEXT:    kernel.store
// CHECK-NOT:     kernel.bulk_wait
kernel.func @all(%y: memref<64x64xf32>) grid [1] warps 8 {
  %i = kernel.id thread
  %c0 = arith.constant 0 : index
  %m = kernel.tensor_map %y : memref<64x64xf32> -> !kernel.tensor_map<4x64xf32>
  %v = payload.constant 0.0 : vector<1xf32>
  %s = kernel.shared : memref<256xf32, "shared">
  %elected = payload.cmp eq %i, %c0 : index
  kernel.store %v, %s[%i] : memref<256xf32, "shared">, vector<1xf32>
  scf.if %elected {
    kernel.tma_store %s[%c0] to %m[%c0, %c0] : memref<256xf32, "shared">, !kernel.tensor_map<4x64xf32>
    kernel.bulk_commit
  }
  scf.if %elected {
    kernel.tma_store %s[%c0] to %m[%c0, %c0] : memref<256xf32, "shared">, !kernel.tensor_map<4x64xf32>
    kernel.bulk_commit
  }
  kernel.store %v, %s[%i] : memref<256xf32, "shared">, vector<1xf32>
}

// -----

// CHECK: error: kernel.store: overwrites the source of a TMA store whose bulk group is open: commit the group and wait for it first
kernel.func @open(%y: memref<64x64xf32>) grid [1] warps 8 {
  %i = kernel.id thread
  %c0 = arith.constant 0 : index
  %m = kernel.tensor_map %y : memref<64x64xf32> -> !kernel.tensor_map<4x64xf32>
  %v = payload.constant 0.0 : vector<1xf32>
  %s = kernel.shared : memref<256xf32, "shared">
  kernel.tma_store %s[%c0] to %m[%c0, %c0] : memref<256xf32, "shared">, !kernel.tensor_map<4x64xf32>
  kernel.store %v, %s[%i] : memref<256xf32, "shared">, vector<1xf32>
}
