// RUN: %roundtrip

#s0 = #payload.symbol<s0[1:1001]>

// CHECK-LABEL: kernel.func @k0
kernel.func @k0(%x: memref<10x8xf32>, %n: memref<?xi64, #payload.extents<#s0>>) grid [1] warps 1 {
  %v = payload.constant 2.0 : vector<4xf32>
  %i = kernel.id lane
  %p = kernel.indices %i steps [1, 2] : vector<4xindex>
  %w = payload.constant 1 : vector<1xi64>
  %first = payload.constant true : i1
  // CHECK: kernel.atomic_rmw add %v, %x[%p, %i] regs {{\[\[}}0, 1], [0, 2]] where 0 <= %p < 10 steps {{\[\[}}0], [0]] if %first : memref<10x8xf32>, vector<4xf32>
  kernel.atomic_rmw add %v, %x[%p, %i] regs [[0, 1], [0, 2]] where 0 <= %p < 10 steps [[0], [0]] if %first : memref<10x8xf32>, vector<4xf32>
  // CHECK-NEXT: kernel.atomic_rmw min %w, %n[%i] where 0 <= %i < #s0 : memref<?xi64, #payload.extents<#s0>>, vector<1xi64>
  kernel.atomic_rmw min %w, %n[%i] where 0 <= %i < #s0 : memref<?xi64, #payload.extents<#s0>>, vector<1xi64>
}
