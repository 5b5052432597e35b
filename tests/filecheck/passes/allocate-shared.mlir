// RUN: dl-opt %s -p allocate-shared --split-input-file | filecheck %s
// RUN: not dl-opt %s -p 'allocate-shared{target=sm_120}' --split-input-file 2>&1 | filecheck %s --check-prefix SMALL

// Small buffers stay apart, each on 16 bytes: sharing them would cost a barrier and save nothing.
// CHECK-LABEL: @small
// CHECK-SAME: shared 36 {
// CHECK-NEXT: kernel.shared at 0 : memref<3xf32, "shared">
// CHECK-NEXT: kernel.shared at 16 : memref<3xf32, "shared">
// CHECK-NEXT: kernel.shared at 32 : memref<4xi1, "shared">
kernel.func @small(%y: memref<4xf32>) grid 1 warps 1 {
  %a = kernel.shared : memref<3xf32, "shared">
  %b = kernel.shared : memref<3xf32, "shared">
  %m = kernel.shared : memref<4xi1, "shared">
  %i = payload.constant 0 : index
  %v = kernel.load %a[%i] : memref<3xf32, "shared"> (index) -> vector<1xf32>
  kernel.store %v, %b[%i] : memref<3xf32, "shared"> (index), vector<1xf32>
  %c = kernel.load %m[%i] : memref<4xi1, "shared"> (index) -> vector<1xi1>
}

// -----

// Large ones that are never in use together lie on the same bytes; %b is in use with both.
// CHECK-LABEL: @large
// CHECK-SAME: shared 32768 {
// CHECK-NEXT: %a = kernel.shared at 0
// CHECK-NEXT: %b = kernel.shared at 16384
// CHECK-NEXT: %c = kernel.shared at 0
kernel.func @large(%y: memref<4xf32>) grid 1 warps 1 {
  %a = kernel.shared : memref<4096xf32, "shared">
  %b = kernel.shared : memref<4096xf32, "shared">
  %c = kernel.shared : memref<4096xf32, "shared">
  %i = payload.constant 0 : index
  %v = kernel.load %a[%i] : memref<4096xf32, "shared"> (index) -> vector<1xf32>
  kernel.store %v, %b[%i] : memref<4096xf32, "shared"> (index), vector<1xf32>
  %u = kernel.load %a[%i] : memref<4096xf32, "shared"> (index) -> vector<1xf32>
  kernel.store %u, %c[%i] : memref<4096xf32, "shared"> (index), vector<1xf32>
  %w = kernel.load %b[%i] : memref<4096xf32, "shared"> (index) -> vector<1xf32>
}

// -----

// A buffer from outside of a loop keeps its contents throughout the loop; one from inside is new in each iteration.
// CHECK-LABEL: @loop
// CHECK-SAME: shared 32768 {
// CHECK-NEXT: %a = kernel.shared at 0
// CHECK: %b = kernel.shared at 16384
// CHECK: %c = kernel.shared at 16384
kernel.func @loop(%y: memref<4xf32>) grid 1 warps 1 {
  %a = kernel.shared : memref<4096xf32, "shared">
  %0 = payload.constant 0 : index
  %1 = payload.constant 1 : index
  %8 = payload.constant 8 : index
  scf.for %k = %0 to %8 step %1 {
    %v = kernel.load %a[%k] : memref<4096xf32, "shared"> (index) -> vector<1xf32>
    %b = kernel.shared : memref<4096xf32, "shared">
    kernel.store %v, %b[%k] : memref<4096xf32, "shared"> (index), vector<1xf32>
    %w = kernel.load %b[%k] : memref<4096xf32, "shared"> (index) -> vector<1xf32>
    %c = kernel.shared : memref<4096xf32, "shared">
    kernel.store %w, %c[%k] : memref<4096xf32, "shared"> (index), vector<1xf32>
  }
}

// -----

// Where barriers have been placed already, nothing is shared: nobody would add the ones that sharing needs.
// CHECK-LABEL: @synchronised
// CHECK-SAME: shared 32768 {
kernel.func @synchronised(%y: memref<4xf32>) grid 1 warps 1 {
  %a = kernel.shared : memref<4096xf32, "shared">
  %c = kernel.shared : memref<4096xf32, "shared">
  %i = payload.constant 0 : index
  %v = kernel.load %a[%i] : memref<4096xf32, "shared"> (index) -> vector<1xf32>
  kernel.barrier
  kernel.store %v, %c[%i] : memref<4096xf32, "shared"> (index), vector<1xf32>
}

// -----

// More than the target has is refused.
// CHECK-LABEL: @much
// CHECK-SAME: shared 120000 {
// SMALL: error: kernel.func: much: needs 120000 bytes of shared memory, a block of sm_120 has 101376
kernel.func @much(%y: memref<4xf32>) grid 1 warps 1 {
  %a = kernel.shared : memref<30000xf32, "shared">
  %i = payload.constant 0 : index
  %v = kernel.load %a[%i] : memref<30000xf32, "shared"> (index) -> vector<1xf32>
}
