// RUN: dl-opt %s -p kernel-insert-barriers --split-input-file --remarks --verify-diagnostics | filecheck %s

// What a block stored, others read: the whole cluster waits, and again before a block ends, as its memory goes with it.
// CHECK-LABEL: @exchange
// CHECK: kernel.store
// CHECK-NEXT: kernel.cluster_barrier
// CHECK-NEXT: kernel.load
// CHECK-NEXT: kernel.cluster_barrier
// CHECK-NEXT: }
kernel.func @exchange() grid [2] warps 1 cluster 2 {
  %s = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %r = kernel.id rank
  %v = payload.constant 1.0 : vector<1xf32>
  %p = kernel.mapa %s of %r : memref<32xf32, "shared"> -> memref<32xf32, "cluster">
  kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
  %w = kernel.load %p[%i] : memref<32xf32, "cluster"> -> vector<1xf32>
}

// -----

// In a loop others still read what the next iteration overwrites. The block's own reads need a barrier of its own only.
// CHECK-LABEL: @again
// CHECK: scf.for
// CHECK-NEXT: kernel.cluster_barrier
// CHECK-NEXT: kernel.store
// CHECK-NEXT: kernel.barrier
// CHECK-NEXT: kernel.load %s
// CHECK-NEXT: kernel.cluster_barrier
// CHECK-NEXT: kernel.load %p
// CHECK: }
// CHECK-NEXT: kernel.cluster_barrier
kernel.func @again() grid [2] warps 1 cluster 2 {
  %s = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %r = kernel.id rank
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %v = payload.constant 1.0 : vector<1xf32>
  %p = kernel.mapa %s of %r : memref<32xf32, "shared"> -> memref<32xf32, "cluster">
  scf.for %k = %c0 to %c4 step %c1 {
    kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
    %u = kernel.load %s[%i] : memref<32xf32, "shared"> -> vector<1xf32>
    %w = kernel.load %p[%i] : memref<32xf32, "cluster"> -> vector<1xf32>
  }
}

// -----

// Nothing is read after the barrier that is there: no further one is needed.
// CHECK-LABEL: @said
// CHECK-COUNT-2: kernel.cluster_barrier
// CHECK-NOT: kernel.cluster_barrier
kernel.func @said() grid [2] warps 1 cluster 2 {
  %s = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %r = kernel.id rank
  %v = payload.constant 1.0 : vector<1xf32>
  %p = kernel.mapa %s of %r : memref<32xf32, "shared"> -> memref<32xf32, "cluster">
  kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
  kernel.cluster_barrier
  %w = kernel.load %p[%i] : memref<32xf32, "cluster"> -> vector<1xf32>
  kernel.cluster_barrier
}

// -----

// A partition that reads what other blocks store waits for the cluster. All threads of the cluster meet there, so the
// other partition waits at its end.
// CHECK-LABEL: @partition
// CHECK:      partition "one"
// CHECK-NEXT:   kernel.store
// CHECK-NEXT:   kernel.cluster_barrier
// CHECK-NEXT:   kernel.load
// CHECK-NEXT: }
// CHECK-NEXT: partition "two"
// CHECK-NEXT:   kernel.id thread
// CHECK-NEXT:   kernel.cluster_barrier
// CHECK-NEXT: }
// CHECK-NEXT: }
// CHECK-NEXT: kernel.cluster_barrier
kernel.func @partition() grid [2] warps 2 cluster 2 {
  %s = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %r = kernel.id rank
  %v = payload.constant 1.0 : vector<1xf32>
  %p = kernel.mapa %s of %r : memref<32xf32, "shared"> -> memref<32xf32, "cluster">
  kernel.warp_specialize {
    partition "one"(%w) warps 1 {
      kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
      %u = kernel.load %p[%i] : memref<32xf32, "cluster"> -> vector<1xf32>
    }
    partition "two"(%w) warps 1 {
      %u = kernel.id thread
    }
  }
}

// -----

// expected-error @below {{reads another block's memory in a loop or condition of a partition}}
kernel.func @partition() grid [2] warps 2 cluster 2 {
  %s = kernel.shared : memref<32xf32, "shared">
  %i = kernel.id lane
  %r = kernel.id rank
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %v = payload.constant 1.0 : vector<1xf32>
  %p = kernel.mapa %s of %r : memref<32xf32, "shared"> -> memref<32xf32, "cluster">
  kernel.warp_specialize {
    partition "one"(%w) warps 1 {
      scf.for %k = %c0 to %i step %c1 {
        kernel.store %v, %s[%i] : memref<32xf32, "shared">, vector<1xf32>
        %u = kernel.load %p[%i] : memref<32xf32, "cluster"> -> vector<1xf32>
      }
    }
    partition "two"(%w) warps 1 {
      %u = kernel.id thread
    }
  }
}
