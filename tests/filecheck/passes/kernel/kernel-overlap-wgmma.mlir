// RUN: dl-opt %s --split-input-file -p kernel-overlap-wgmma | filecheck %s
// RUN: dl-opt %s --split-input-file -p kernel-overlap-wgmma --remarks | filecheck %s --check-prefix REMARK

// The wait for a product moves to the next iteration, and the slot that it has read is given back there; from zero, the
// first product does not add.
// CHECK-LABEL: kernel.func @product
// CHECK:         %p = kernel.undef_accumulators : !kernel.async_accumulators<vector<32xf32>>
// CHECK-NEXT:    %{{.*}}, %{{.*}}, %{{.*}}, [[LAST:%.*]] = scf.for %k = %c0 to %c4 step %c1 iter_args(%a = %p, %slot = %c0, %phase = %c0, %last = %c0) -> (!kernel.async_accumulators<vector<32xf32>>, index, index, index) {
// CHECK-NEXT:      %more = payload.cmp ne %k, %c0 : index
// CHECK-NEXT:      kernel.mbar_wait %full[%slot] parity %phase
// CHECK:           %q = kernel.wgmma %x[%o], %y[%o] into %a k_steps 4 swizzle 128 use_acc %more
// CHECK-NEXT:      kernel.wgmma_commit
// CHECK-NEXT:      %next, %flipped = kernel.advance %slot, %phase of 2
// CHECK-NEXT:      [[W:%.*]] = kernel.wgmma_wait 1, %q : !kernel.async_accumulators<vector<32xf32>> -> !kernel.async_accumulators<vector<32xf32>>
// CHECK-NEXT:      %free = arith.andi %elected, %more : i1
// CHECK-NEXT:      scf.if %free {
// CHECK-NEXT:        kernel.mbar_arrive %empty[%last]
// CHECK-NEXT:      }
// CHECK-NEXT:      scf.yield [[W]], %next, %flipped, %slot
// CHECK-NEXT:    }
// CHECK-NEXT:    [[SUMS:%.*]] = kernel.wgmma_wait 0, %{{.*}} : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
// CHECK-NEXT:    scf.if %elected {
// CHECK-NEXT:      kernel.mbar_arrive %empty[[[LAST]]]
// CHECK-NEXT:    }
// CHECK-NEXT:    kernel.store [[SUMS]]
kernel.func @product(%g: memref<256x64xbf16>, %z: memref<64x64xf32>) grid [1] warps 4 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c4096 = arith.constant 4096 : index
  %boxes = kernel.tensor_map %g : memref<256x64xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  %full = kernel.shared : memref<2x!kernel.mbarrier, "shared">
  %empty = kernel.shared : memref<2x!kernel.mbarrier, "shared">
  %x = kernel.shared : memref<8192xbf16, "shared">
  %y = kernel.shared : memref<8192xbf16, "shared">
  %thread = kernel.id thread
  %elected = payload.cmp eq %thread, %c0 : index
  kernel.tma_load %boxes[%c0, %c0] to %x[%c0] signal %full[%c0] : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<8192xbf16, "shared">, memref<2x!kernel.mbarrier, "shared">
  kernel.tma_load %boxes[%c0, %c0] to %y[%c0] signal %full[%c0] : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<8192xbf16, "shared">, memref<2x!kernel.mbarrier, "shared">
  %zero = payload.constant 0.0 : vector<32xf32>
  %s, %t, %u = scf.for %k = %c0 to %c4 step %c1 iter_args(%a = %zero, %slot = %c0, %phase = %c0) -> (vector<32xf32>, index, index) {
    kernel.mbar_wait %full[%slot] parity %phase : memref<2x!kernel.mbarrier, "shared">
    %o = arith.muli %slot, %c4096 : index
    %p = kernel.registers_to_accumulators %a : vector<32xf32>
    kernel.wgmma_fence
    %q = kernel.wgmma %x[%o], %y[%o] into %p k_steps 4 swizzle 128 : memref<8192xbf16, "shared">, memref<8192xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
    kernel.wgmma_commit
    %r = kernel.wgmma_wait 0, %q : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
    scf.if %elected {
      kernel.mbar_arrive %empty[%slot] : memref<2x!kernel.mbarrier, "shared">
    }
    %next, %flipped = kernel.advance %slot, %phase of 2
    scf.yield %r, %next, %flipped : vector<32xf32>, index, index
  }
  kernel.store %s, %z[%thread, %c0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]] : memref<64x64xf32> (index, index), vector<32xf32>
}

// -----

// How often the loop runs, and what it starts from, is known at run time only: it starts with what there is, and gives
// the last slot back if there was one.
// CHECK-LABEL: kernel.func @perhaps_never
// CHECK:         kernel.registers_to_accumulators %start : vector<32xf32>
// CHECK-NEXT:    scf.for
// CHECK:           kernel.wgmma %x[%o], %y[%o] into %a k_steps 4 swizzle 128 : memref
// CHECK:         kernel.wgmma_wait 0
// CHECK-NEXT:    [[RAN:%.*]] = payload.cmp lt %c0, %n : index
// CHECK-NEXT:    scf.if [[RAN]] {
// CHECK-NEXT:      kernel.mbar_arrive %empty
kernel.func @perhaps_never(%g: memref<256x64xbf16>, %z: memref<64x64xf32>) grid [8] warps 4 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4096 = arith.constant 4096 : index
  %n = kernel.id block
  %boxes = kernel.tensor_map %g : memref<256x64xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  %full = kernel.shared : memref<2x!kernel.mbarrier, "shared">
  %empty = kernel.shared : memref<2x!kernel.mbarrier, "shared">
  %x = kernel.shared : memref<8192xbf16, "shared">
  %y = kernel.shared : memref<8192xbf16, "shared">
  %thread = kernel.id thread
  kernel.tma_load %boxes[%c0, %c0] to %x[%c0] signal %full[%c0] : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<8192xbf16, "shared">, memref<2x!kernel.mbarrier, "shared">
  kernel.tma_load %boxes[%c0, %c0] to %y[%c0] signal %full[%c0] : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<8192xbf16, "shared">, memref<2x!kernel.mbarrier, "shared">
  %start = payload.constant 0.0 : vector<32xf32>
  %s, %t, %u = scf.for %k = %c0 to %n step %c1 iter_args(%a = %start, %slot = %c0, %phase = %c0) -> (vector<32xf32>, index, index) {
    kernel.mbar_wait %full[%slot] parity %phase : memref<2x!kernel.mbarrier, "shared">
    %o = arith.muli %slot, %c4096 : index
    %p = kernel.registers_to_accumulators %a : vector<32xf32>
    kernel.wgmma_fence
    %q = kernel.wgmma %x[%o], %y[%o] into %p k_steps 4 swizzle 128 : memref<8192xbf16, "shared">, memref<8192xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
    kernel.wgmma_commit
    %r = kernel.wgmma_wait 0, %q : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
    kernel.mbar_arrive %empty[%slot] : memref<2x!kernel.mbarrier, "shared">
    %next, %flipped = kernel.advance %slot, %phase of 2
    scf.yield %r, %next, %flipped : vector<32xf32>, index, index
  }
  kernel.store %s, %z[%thread, %c0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]] : memref<64x64xf32> (index, index), vector<32xf32>
}

// -----

// The sums are scaled in the loop: there they have to be complete.
// CHECK-LABEL: kernel.func @scaled
// CHECK:         kernel.wgmma_wait 0
// REMARK: remark: [kernel-overlap-wgmma] scf.for: its sums are used in the same iteration
kernel.func @scaled(%g: memref<256x64xbf16>, %z: memref<64x64xf32>) grid [1] warps 4 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %boxes = kernel.tensor_map %g : memref<256x64xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  %full = kernel.shared : memref<2x!kernel.mbarrier, "shared">
  %x = kernel.shared : memref<8192xbf16, "shared">
  %thread = kernel.id thread
  kernel.tma_load %boxes[%c0, %c0] to %x[%c0] signal %full[%c0] : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<8192xbf16, "shared">, memref<2x!kernel.mbarrier, "shared">
  %two = payload.constant 2.0 : vector<32xf32>
  %s = scf.for %k = %c0 to %c4 step %c1 iter_args(%a = %two) -> (vector<32xf32>) {
    %b = arith.mulf %a, %two : vector<32xf32>
    %p = kernel.registers_to_accumulators %b : vector<32xf32>
    kernel.wgmma_fence
    %q = kernel.wgmma %x[%c0], %x[%c0] into %p k_steps 4 swizzle 128 : memref<8192xbf16, "shared">, memref<8192xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
    kernel.wgmma_commit
    %r = kernel.wgmma_wait 0, %q : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
    scf.yield %r : vector<32xf32>
  }
  kernel.store %s, %z[%thread, %c0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]] : memref<64x64xf32> (index, index), vector<32xf32>
}
