// RUN: dl-opt %s | dl-opt | filecheck %s

#s0 = #payload.symbol<s0[1:1001]>

// CHECK-LABEL: @peers(%x: memref<64xf32>) grid [#s0 / 64, 4] warps 2 cluster 4 shared 256 {
// CHECK:         %r = kernel.id rank
// CHECK-NEXT:    %s = kernel.shared at 0 : memref<64xf32, "shared">
// CHECK-NEXT:    kernel.cluster_barrier
// CHECK-NEXT:    %p = kernel.mapa %s of %r : memref<64xf32, "shared"> -> memref<64xf32, "cluster">
// CHECK-NEXT:    %v = kernel.load %p[%r] xor regs {{\[\[}}1]] vec 2 : memref<64xf32, "cluster"> -> vector<2xf32>
kernel.func @peers(%x: memref<64xf32>) grid [#s0 / 64, 4] warps 2 cluster 4 shared 256 {
  %r = kernel.id rank
  %s = kernel.shared at 0 : memref<64xf32, "shared">
  kernel.cluster_barrier
  %p = kernel.mapa %s of %r : memref<64xf32, "shared"> -> memref<64xf32, "cluster">
  %v = kernel.load %p[%r] xor regs [[1]] vec 2 : memref<64xf32, "cluster"> -> vector<2xf32>
}

// CHECK-LABEL: @boxes
// CHECK:         kernel.mbar_arrive %full[%r] of %r : memref<2x!kernel.mbarrier, "shared">
// CHECK-NEXT:    kernel.mbar_arrive %full[%r] of %r async : memref<2x!kernel.mbarrier, "shared">
// CHECK-NEXT:    kernel.tma_load %a[%r, %r] to %s[%r] signal %full[%r] multicast [0, 1] : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<4096xbf16, "shared">, memref<2x!kernel.mbarrier, "shared">
kernel.func @boxes(%x: memref<512x320xbf16>) grid [2] warps 1 cluster 2 {
  %r = kernel.id rank
  %a = kernel.tensor_map %x : memref<512x320xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  %full = kernel.shared : memref<2x!kernel.mbarrier, "shared">
  %s = kernel.shared : memref<4096xbf16, "shared">
  kernel.mbar_arrive %full[%r] of %r : memref<2x!kernel.mbarrier, "shared">
  kernel.mbar_arrive %full[%r] of %r async : memref<2x!kernel.mbarrier, "shared">
  kernel.tma_load %a[%r, %r] to %s[%r] signal %full[%r] multicast [0, 1] : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<4096xbf16, "shared">, memref<2x!kernel.mbarrier, "shared">
}

// A cluster of one block is none.
// CHECK-LABEL: @alone() grid [3] warps 1 {
kernel.func @alone() grid [3] warps 1 cluster 1 {
  %r = kernel.id rank
}
