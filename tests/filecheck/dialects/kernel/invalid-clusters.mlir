// RUN: %diagnostics

// CHECK: error: kernel.func: expected a cluster of 1, 2, 4 or 8 blocks, but got 3
kernel.func @k() grid [3] warps 1 cluster 3 {
  %i = kernel.id rank
}

// -----

// CHECK: error: kernel.func: expected a grid of whole clusters of 4 blocks, but got 6 blocks
kernel.func @k() grid [6] warps 1 cluster 4 {
  %i = kernel.id rank
}

// -----

// CHECK: error: kernel.cluster_barrier: expected a kernel with clusters, because of a barrier of the cluster, but got one without
kernel.func @k() grid [6] warps 1 {
  kernel.cluster_barrier
}

// -----

// CHECK: error: kernel.warp_specialize: expected as many kernel.cluster_barrier in every partition, but got [1, 0]
kernel.func @k() grid [6] warps 2 cluster 2 {
  kernel.warp_specialize {
    partition "one"(%w) warps 1 {
      kernel.cluster_barrier
    }
    partition "two"(%w) warps 1 {
      %i = kernel.id lane
    }
  }
}

// -----

// CHECK: error: kernel.warp_specialize: expected kernel.cluster_barrier outside of loops and conditions of a partition, but got it inside
kernel.func @k() grid [6] warps 2 cluster 2 {
  %yes = payload.constant true : i1
  kernel.warp_specialize {
    partition "one"(%w) warps 1 {
      scf.if %yes {
        kernel.cluster_barrier
      }
    }
    partition "two"(%w) warps 1 {
      kernel.cluster_barrier
    }
  }
}

// -----

// CHECK: error: kernel.mapa: expected a kernel with clusters, because of another block's memory, but got one without
kernel.func @k() grid [6] warps 1 {
  %i = kernel.id rank
  %s = kernel.shared : memref<64xf32, "shared">
  %p = kernel.mapa %s of %i : memref<64xf32, "shared"> -> memref<64xf32, "cluster">
}

// -----

// CHECK: error: kernel.mapa: expected a shared buffer, but got memref<64xf32>
kernel.func @k(%x: memref<64xf32>) grid [6] warps 1 cluster 2 {
  %i = kernel.id rank
  %p = kernel.mapa %x of %i : memref<64xf32> -> memref<64xf32, "cluster">
}

// -----

// CHECK: error: kernel.mapa: expected the result type memref<64xf32, "cluster">, but got memref<64xf32, "shared">
kernel.func @k() grid [6] warps 1 cluster 2 {
  %i = kernel.id rank
  %s = kernel.shared : memref<64xf32, "shared">
  %p = kernel.mapa %s of %i : memref<64xf32, "shared"> -> memref<64xf32, "shared">
}

// -----

// CHECK: error: kernel.store: expected a store to global memory or to the block's own shared memory, but got memref<64xf32, "cluster">
kernel.func @k() grid [6] warps 1 cluster 2 {
  %i = kernel.id rank
  %v = payload.constant 1.0 : vector<1xf32>
  %s = kernel.shared : memref<64xf32, "shared">
  %p = kernel.mapa %s of %i : memref<64xf32, "shared"> -> memref<64xf32, "cluster">
  kernel.store %v, %p[%i] : memref<64xf32, "cluster">, vector<1xf32>
}

// -----

// CHECK: error: kernel.cp_async: expected a copy from global memory to a one-dimensional shared buffer, but got memref<64xf32, "cluster"> to memref<64xf32, "shared">
kernel.func @k() grid [6] warps 1 cluster 2 {
  %i = kernel.id rank
  %s = kernel.shared : memref<64xf32, "shared">
  %p = kernel.mapa %s of %i : memref<64xf32, "shared"> -> memref<64xf32, "cluster">
  kernel.cp_async %p[%i] to %s[%i] : memref<64xf32, "cluster">, memref<64xf32, "shared">
}

// -----

// CHECK: error: kernel.mbar_arrive: expected a kernel with clusters, because of an arrival at another block's barrier, but got one without
kernel.func @k() grid [6] warps 1 {
  %i = kernel.id rank
  %f = kernel.shared : memref<1x!kernel.mbarrier, "shared">
  kernel.mbar_arrive %f[%i] of %i : memref<1x!kernel.mbarrier, "shared">
}

// -----

// CHECK: error: kernel.tma_load: expected a kernel with clusters, because of a box for several blocks, but got one without
kernel.func @k(%x: memref<512x320xbf16>) grid [2] warps 1 {
  %r = kernel.id rank
  %a = kernel.tensor_map %x : memref<512x320xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  %f = kernel.shared : memref<2x!kernel.mbarrier, "shared">
  %s = kernel.shared : memref<4096xbf16, "shared">
  kernel.tma_load %a[%r, %r] to %s[%r] signal %f[%r] multicast [0, 1] : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<4096xbf16, "shared">, memref<2x!kernel.mbarrier, "shared">
}

// -----

// CHECK: error: kernel.tma_load: expected ascending ranks of a cluster of 2, but got [0, 2]
kernel.func @k(%x: memref<512x320xbf16>) grid [2] warps 1 cluster 2 {
  %r = kernel.id rank
  %a = kernel.tensor_map %x : memref<512x320xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  %f = kernel.shared : memref<2x!kernel.mbarrier, "shared">
  %s = kernel.shared : memref<4096xbf16, "shared">
  kernel.tma_load %a[%r, %r] to %s[%r] signal %f[%r] multicast [0, 2] : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<4096xbf16, "shared">, memref<2x!kernel.mbarrier, "shared">
}

// -----

// CHECK: error: kernel.mbar_arrive: expected `of` with a rank before `async`, but got no rank
kernel.func @k() grid [2] warps 1 cluster 2 {
  %i = kernel.id rank
  %f = kernel.shared : memref<1x!kernel.mbarrier, "shared">
  kernel.mbar_arrive %f[%i] async : memref<1x!kernel.mbarrier, "shared">
}
