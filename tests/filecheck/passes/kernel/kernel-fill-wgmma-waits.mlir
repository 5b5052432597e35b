// RUN: dl-opt %s -p kernel-fill-wgmma-waits | filecheck %s

// What needs neither the product nor what stays behind it moves in front of the wait: sums, and a load of what nobody
// writes, up to the first store. Loads of shared memory stay, and what the kernel writes itself.
// CHECK-LABEL: kernel.func @waits
// CHECK:         kernel.wgmma_commit
// CHECK-NEXT:    %t = kernel.reduce_registers add %e over [0]
// CHECK-NEXT:    %u = kernel.shuffle_xor %t by 1
// CHECK-NEXT:    %c = kernel.load %z
// CHECK-NEXT:    %r = kernel.wgmma_wait 0
// CHECK-NEXT:    kernel.mbar_arrive
// CHECK-NEXT:    %l = kernel.load %s
// CHECK-NEXT:    %d = kernel.load %y
// CHECK-NEXT:    %v = arith.mulf %l, %u
// CHECK-NEXT:    %w = arith.addf %r, %zero
// CHECK-NEXT:    kernel.store %w, %y
// CHECK-NEXT:    kernel.load %z
kernel.func @waits(%z: memref<64xf32>, %y: memref<128x32xf32>) grid [1] warps 4 {
  %c0 = arith.constant 0 : index
  %thread = kernel.id thread
  %x = kernel.shared : memref<4096xbf16, "shared">
  %s = kernel.shared : memref<64xf32, "shared">
  %empty = kernel.shared : memref<2x!kernel.mbarrier, "shared">
  %e = payload.constant 1.0 : vector<2xf32>
  %zero = payload.constant 0.0 : vector<32xf32>
  %p = kernel.undef_accumulators : !kernel.async_accumulators<vector<32xf32>>
  kernel.wgmma_fence
  %q = kernel.wgmma %x[%c0], %x[%c0] into %p k_steps 4 swizzle 128 scale_d_zero : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
  kernel.wgmma_commit
  %r = kernel.wgmma_wait 0, %q : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
  kernel.mbar_arrive %empty[%c0] : memref<2x!kernel.mbarrier, "shared">
  %t = kernel.reduce_registers add %e over [0] : vector<2xf32> -> vector<1xf32>
  %u = kernel.shuffle_xor %t by 1 : vector<1xf32>
  %l = kernel.load %s[%c0] : memref<64xf32, "shared"> (index) -> vector<1xf32>
  %c = kernel.load %z[%c0] : memref<64xf32> (index) -> vector<1xf32>
  %d = kernel.load %y[%c0, %c0] : memref<128x32xf32> (index, index) -> vector<1xf32>
  %v = arith.mulf %l, %u : vector<1xf32>
  %w = arith.addf %r, %zero : vector<32xf32>
  kernel.store %w, %y[%thread, %c0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]] : memref<128x32xf32> (index, index), vector<32xf32>
  %late = kernel.load %z[%c0] : memref<64xf32> (index) -> vector<1xf32>
}
