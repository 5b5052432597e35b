// RUN: dl-opt %s -p kernel-overwrite-accumulators,dce | filecheck %s

// The first product into zeros does not add to them; the second, into the same sums, does. What is not zero stays.
// CHECK-LABEL: kernel.func @products
// CHECK-NOT:     payload.constant 0.0
// CHECK:         %p = kernel.undef_accumulators : !kernel.async_accumulators<vector<32xf32>>
// CHECK:         %q = kernel.wgmma %x[%c0], %x[%c0] into %p k_steps 4 swizzle 128 scale_d_zero : memref
// CHECK-NEXT:    %r = kernel.wgmma %x[%c0], %x[%c0] into %q k_steps 4 swizzle 128 : memref
// CHECK:         %p2 = kernel.registers_to_accumulators %one : vector<32xf32>
// CHECK:         kernel.wgmma %x[%c0], %x[%c0] into %p2 k_steps 4 swizzle 128 : memref
kernel.func @products(%z: memref<64x64xf32>) grid [1] warps 4 {
  %c0 = arith.constant 0 : index
  %thread = kernel.id thread
  %x = kernel.shared : memref<4096xbf16, "shared">
  %zero = payload.constant 0.0 : vector<32xf32>
  %one = payload.constant 1.0 : vector<32xf32>
  %p = kernel.registers_to_accumulators %zero : vector<32xf32>
  kernel.wgmma_fence
  %q = kernel.wgmma %x[%c0], %x[%c0] into %p k_steps 4 swizzle 128 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
  %r = kernel.wgmma %x[%c0], %x[%c0] into %q k_steps 4 swizzle 128 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
  kernel.wgmma_commit
  %s = kernel.wgmma_wait 0, %r : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
  %p2 = kernel.registers_to_accumulators %one : vector<32xf32>
  kernel.wgmma_fence
  %q2 = kernel.wgmma %x[%c0], %x[%c0] into %p2 k_steps 4 swizzle 128 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
  kernel.wgmma_commit
  %s2 = kernel.wgmma_wait 0, %q2 : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
  %sum = arith.addf %s, %s2 : vector<32xf32>
  kernel.store %sum, %z[%thread, %c0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]] : memref<64x64xf32> (index, index), vector<32xf32>
}
