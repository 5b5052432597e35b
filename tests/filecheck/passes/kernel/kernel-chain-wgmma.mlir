// RUN: dl-opt %s --split-input-file -p kernel-chain-wgmma | filecheck %s

// One group of two products; the slot that the first has read is given back behind the wait for both.
// CHECK-LABEL: kernel.func @product
// CHECK:         %p = kernel.registers_to_accumulators %acc
// CHECK-NEXT:    kernel.wgmma_fence
// CHECK-NEXT:    %q = kernel.wgmma %x[%c0], %y[%c0] into %p k_steps 4 swizzle 128
// CHECK-NEXT:    %t = kernel.wgmma %y[%c0], %x[%c0] into %q k_steps 4 swizzle 128
// CHECK-NEXT:    kernel.wgmma_commit
// CHECK-NEXT:    %u = kernel.wgmma_wait 0, %t
// CHECK-NEXT:    scf.if %elected {
// CHECK-NEXT:      kernel.mbar_arrive %empty[%c0]
// CHECK-NEXT:    }
// CHECK-NEXT:    kernel.store %u
kernel.func @product(%z: memref<64x64xf32>) grid [1] warps 4 {
  %c0 = arith.constant 0 : index
  %empty = kernel.shared : memref<2x!kernel.mbarrier, "shared">
  %x = kernel.shared : memref<4096xbf16, "shared">
  %y = kernel.shared : memref<4096xbf16, "shared">
  %thread = kernel.id thread
  %elected = payload.cmp eq %thread, %c0 : index
  %acc = payload.constant 0.0 : vector<32xf32>
  %p = kernel.registers_to_accumulators %acc : vector<32xf32>
  kernel.wgmma_fence
  %q = kernel.wgmma %x[%c0], %y[%c0] into %p k_steps 4 swizzle 128 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
  kernel.wgmma_commit
  %r = kernel.wgmma_wait 0, %q : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
  scf.if %elected {
    kernel.mbar_arrive %empty[%c0] : memref<2x!kernel.mbarrier, "shared">
  }
  %s = kernel.registers_to_accumulators %r : vector<32xf32>
  kernel.wgmma_fence
  %t = kernel.wgmma %y[%c0], %x[%c0] into %s k_steps 4 swizzle 128 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
  kernel.wgmma_commit
  %u = kernel.wgmma_wait 0, %t : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
  kernel.store %u, %z[%thread, %c0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]] : memref<64x64xf32> (index, index), vector<32xf32>
}

// -----

// What is stored between them may overwrite what the first has read: they stay apart.
// CHECK-LABEL: kernel.func @apart
// CHECK:         kernel.wgmma_wait
// CHECK-NEXT:    kernel.store %c0f
// CHECK-NEXT:    kernel.registers_to_accumulators
kernel.func @apart(%z: memref<64x64xf32>) grid [1] warps 4 {
  %c0 = arith.constant 0 : index
  %x = kernel.shared : memref<4096xbf16, "shared">
  %y = kernel.shared : memref<4096xbf16, "shared">
  %thread = kernel.id thread
  %c0f = payload.constant 0.0 : vector<1xbf16>
  %acc = payload.constant 0.0 : vector<32xf32>
  %p = kernel.registers_to_accumulators %acc : vector<32xf32>
  kernel.wgmma_fence
  %q = kernel.wgmma %x[%c0], %y[%c0] into %p k_steps 4 swizzle 128 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
  kernel.wgmma_commit
  %r = kernel.wgmma_wait 0, %q : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
  kernel.store %c0f, %x[%thread] : memref<4096xbf16, "shared"> (index), vector<1xbf16>
  %s = kernel.registers_to_accumulators %r : vector<32xf32>
  kernel.wgmma_fence
  %t = kernel.wgmma %x[%c0], %y[%c0] into %s k_steps 4 swizzle 128 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
  kernel.wgmma_commit
  %u = kernel.wgmma_wait 0, %t : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
  kernel.store %u, %z[%thread, %c0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]] : memref<64x64xf32> (index, index), vector<32xf32>
}

// -----

// The second waits for its operands: its fence stays.
// CHECK-LABEL: kernel.func @after_data
// CHECK:         kernel.wgmma_fence
// CHECK-NEXT:    %q = kernel.wgmma %x[%c0], %y[%c0] into %p
// CHECK-NEXT:    kernel.mbar_wait %full[%c0]
// CHECK-NEXT:    kernel.wgmma_fence
// CHECK-NEXT:    %t = kernel.wgmma %y[%c0], %x[%c0] into %q
// CHECK-NEXT:    kernel.wgmma_commit
// CHECK-NEXT:    %u = kernel.wgmma_wait 0, %t
kernel.func @after_data(%z: memref<64x64xf32>) grid [1] warps 4 {
  %c0 = arith.constant 0 : index
  %full = kernel.shared : memref<2x!kernel.mbarrier, "shared">
  %x = kernel.shared : memref<4096xbf16, "shared">
  %y = kernel.shared : memref<4096xbf16, "shared">
  %thread = kernel.id thread
  %acc = payload.constant 0.0 : vector<32xf32>
  %p = kernel.registers_to_accumulators %acc : vector<32xf32>
  kernel.wgmma_fence
  %q = kernel.wgmma %x[%c0], %y[%c0] into %p k_steps 4 swizzle 128 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
  kernel.wgmma_commit
  %r = kernel.wgmma_wait 0, %q : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
  kernel.mbar_wait %full[%c0] parity %c0 : memref<2x!kernel.mbarrier, "shared">
  %s = kernel.registers_to_accumulators %r : vector<32xf32>
  kernel.wgmma_fence
  %t = kernel.wgmma %y[%c0], %x[%c0] into %s k_steps 4 swizzle 128 : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
  kernel.wgmma_commit
  %u = kernel.wgmma_wait 0, %t : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
  kernel.store %u, %z[%thread, %c0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]] : memref<64x64xf32> (index, index), vector<32xf32>
}
