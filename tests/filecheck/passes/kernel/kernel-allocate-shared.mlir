// RUN: dl-opt %s -p kernel-allocate-shared --split-input-file | filecheck %s
// RUN: not dl-opt %s -p 'kernel-allocate-shared{target=sm_120}' --split-input-file 2>&1 | filecheck %s --check-prefix SMALL

// Small buffers stay apart, each on 16 bytes: sharing them would cost a barrier and save nothing.
// CHECK-LABEL: @small
// CHECK-SAME: shared 36 {
// CHECK-NEXT: kernel.shared at 0 : memref<3xf32, "shared">
// CHECK-NEXT: kernel.shared at 16 : memref<3xf32, "shared">
// CHECK-NEXT: kernel.shared at 32 : memref<4xi1, "shared">
kernel.func @small(%y: memref<4xf32>) grid [1] warps 1 {
  %a = kernel.shared : memref<3xf32, "shared">
  %b = kernel.shared : memref<3xf32, "shared">
  %m = kernel.shared : memref<4xi1, "shared">
  %i = payload.constant 0 : index
  %v = kernel.load %a[%i] : memref<3xf32, "shared"> -> vector<1xf32>
  kernel.store %v, %b[%i] : memref<3xf32, "shared">, vector<1xf32>
  %c = kernel.load %m[%i] : memref<4xi1, "shared"> -> vector<1xi1>
}

// -----

// Large ones that are never in use together lie on the same bytes; %b is in use with both.
// CHECK-LABEL: @large
// CHECK-SAME: shared 32768 {
// CHECK-NEXT: %a = kernel.shared at 0
// CHECK-NEXT: %b = kernel.shared at 16384
// CHECK-NEXT: %c = kernel.shared at 0
kernel.func @large(%y: memref<4xf32>) grid [1] warps 1 {
  %a = kernel.shared : memref<4096xf32, "shared">
  %b = kernel.shared : memref<4096xf32, "shared">
  %c = kernel.shared : memref<4096xf32, "shared">
  %i = payload.constant 0 : index
  %v = kernel.load %a[%i] : memref<4096xf32, "shared"> -> vector<1xf32>
  kernel.store %v, %b[%i] : memref<4096xf32, "shared">, vector<1xf32>
  %u = kernel.load %a[%i] : memref<4096xf32, "shared"> -> vector<1xf32>
  kernel.store %u, %c[%i] : memref<4096xf32, "shared">, vector<1xf32>
  %w = kernel.load %b[%i] : memref<4096xf32, "shared"> -> vector<1xf32>
}

// -----

// A buffer from outside of a loop keeps its contents throughout the loop; one from inside is new in each iteration.
// CHECK-LABEL: @loop
// CHECK-SAME: shared 32768 {
// CHECK-NEXT: %a = kernel.shared at 0
// CHECK: %b = kernel.shared at 16384
// CHECK: %c = kernel.shared at 16384
kernel.func @loop(%y: memref<4xf32>) grid [1] warps 1 {
  %a = kernel.shared : memref<4096xf32, "shared">
  %0 = payload.constant 0 : index
  %1 = payload.constant 1 : index
  %8 = payload.constant 8 : index
  scf.for %k = %0 to %8 step %1 {
    %v = kernel.load %a[%k] : memref<4096xf32, "shared"> -> vector<1xf32>
    %b = kernel.shared : memref<4096xf32, "shared">
    kernel.store %v, %b[%k] : memref<4096xf32, "shared">, vector<1xf32>
    %w = kernel.load %b[%k] : memref<4096xf32, "shared"> -> vector<1xf32>
    %c = kernel.shared : memref<4096xf32, "shared">
    kernel.store %w, %c[%k] : memref<4096xf32, "shared">, vector<1xf32>
  }
}

// -----

// Where barriers have been placed already, nothing is shared: nobody would add the ones that sharing needs.
// CHECK-LABEL: @synchronised
// CHECK-SAME: shared 32768 {
kernel.func @synchronised(%y: memref<4xf32>) grid [1] warps 1 {
  %a = kernel.shared : memref<4096xf32, "shared">
  %c = kernel.shared : memref<4096xf32, "shared">
  %i = payload.constant 0 : index
  %v = kernel.load %a[%i] : memref<4096xf32, "shared"> -> vector<1xf32>
  kernel.barrier
  kernel.store %v, %c[%i] : memref<4096xf32, "shared">, vector<1xf32>
}

// -----

// More than the target has is refused.
// CHECK-LABEL: @much
// CHECK-SAME: shared 120000 {
// SMALL: error: kernel.func: much: needs 120000 bytes of shared memory, a block of sm_120 has 101376
kernel.func @much(%y: memref<4xf32>) grid [1] warps 1 {
  %a = kernel.shared : memref<30000xf32, "shared">
  %i = payload.constant 0 : index
  %v = kernel.load %a[%i] : memref<30000xf32, "shared"> -> vector<1xf32>
}

// -----

// Boxes and operands of a warpgroup's products start where their swizzle counts from; with mbarriers nothing is shared.
// CHECK-LABEL: @boxes
// CHECK-SAME: shared 38912 {
// CHECK:      kernel.shared at 0 : memref<2x!kernel.mbarrier, "shared">
// CHECK-NEXT: kernel.shared at 128 : memref<1024xf32, "shared">
// CHECK-NEXT: kernel.shared at 5120 : memref<4096xbf16, "shared">
// CHECK-NEXT: kernel.shared at 13312 : memref<4096xbf16, "shared">
// CHECK-NEXT: kernel.shared at 21504 : memref<4097xbf16, "shared">
// CHECK-NEXT: kernel.shared at 30720 : memref<4096xbf16, "shared">
kernel.func @boxes(%x: memref<64x64xbf16>) grid [1] warps 4 {
  %full = kernel.shared : memref<2x!kernel.mbarrier, "shared">
  %o = kernel.shared : memref<1024xf32, "shared">
  %a = kernel.shared : memref<4096xbf16, "shared">
  %b = kernel.shared : memref<4096xbf16, "shared">
  %t = kernel.shared : memref<4097xbf16, "shared">
  %c = kernel.shared : memref<4096xbf16, "shared">
  %i = payload.constant 0 : index
  %m = kernel.tensor_map %x : memref<64x64xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
  %v = kernel.load %o[%i] : memref<1024xf32, "shared"> -> vector<1xf32>
  %w = kernel.load %t[%i] : memref<4097xbf16, "shared"> -> vector<1xbf16>
  kernel.tma_load %m[%i, %i] to %a[%i] signal %full[%i] : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<4096xbf16, "shared">, memref<2x!kernel.mbarrier, "shared">
  kernel.mbar_wait %full[%i] parity %i : memref<2x!kernel.mbarrier, "shared">
  %p = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
  %q = kernel.wgmma %a[%i], %b[%i] into %p k_steps 4 swizzle 128 scale_d_zero : memref<4096xbf16, "shared">, memref<4096xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
  kernel.tma_store %c[%i] to %m[%i, %i] : memref<4096xbf16, "shared">, !kernel.tensor_map<64x64xbf16, swizzle 128>
}
