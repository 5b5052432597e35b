// RUN: dl-opt %s -p 'tile-print-values{values="k0:%acc[*,*,5]","%a"},canonicalize,cse,dce' | filecheck %s
// RUN: dl-opt %s -p tile-print-values | filecheck %s --check-prefix NONE
// RUN: not dl-opt %s -p 'tile-print-values{values="%q"}' 2>&1 | filecheck %s --check-prefix NAME
// RUN: not dl-opt %s -p 'tile-print-values{values="%a[1]"}' 2>&1 | filecheck %s --check-prefix INDEX

// NONE-NOT: tile.print
// NAME: --print %q: expected a value of the kernels k0, but got %q; --ir tile prints their names
// INDEX: --print %a[1]: expected an index of 2 numbers, but got 1

// The load has a border, and its index is that of the loaded tensor. The sum has no place in a tensor: its index is
// block, iteration, element. A print of all elements is one of the first block.
// CHECK-LABEL: @k0
// CHECK:         tile.load
// CHECK-NEXT:    %[[I:.*]] = tile.affine d0 + %b * 4
// CHECK-NEXT:    %[[J:.*]] = tile.affine d1 + %k * 8
// CHECK-NEXT:    %[[AT:.*]] = tile.affine %k * 8 + d1
// CHECK-NEXT:    %[[ZERO:.*]] = tile.affine 0
// CHECK-NEXT:    %[[LO:.*]] = payload.cmp le %[[ZERO]], %[[AT]]
// CHECK-NEXT:    %[[END:.*]] = tile.affine 12
// CHECK-NEXT:    %[[HI:.*]] = payload.cmp lt %[[AT]], %[[END]]
// CHECK-NEXT:    %[[IN:.*]] = arith.andi %[[LO]], %[[HI]]
// CHECK-NEXT:    %[[B:.*]] = tile.affine %b
// CHECK-NEXT:    %[[FIRST:.*]] = payload.cmp eq %[[B]], %[[ZERO]]
// CHECK-NEXT:    %[[W:.*]] = arith.andi %[[IN]], %[[FIRST]]
// CHECK-NEXT:    tile.print "k0 %a" %a[%[[I]], %[[J]]] where %[[W]] : tensor<4x8xf32>
// CHECK:         tile.print "k0 %acc (block loop tile)" %acc[%{{.*}}, %{{.*}}, %{{.*}}] where
tile.kernel @k0(%x: memref<16x12xf32>, %y: memref<16xf32>) blocks (%b) in [4] warps 4 {
  %z = payload.constant 0.0 : tensor<4xf32>
  %f = payload.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %r = scf.for %k = %c0 to %c2 step %c1 iter_args(%before = %z) -> (tensor<4xf32>) {
    %a = tile.load %x[d0 + %b * 4, d1 + %k * 8] where 0 <= %k * 8 + d1 < 12 else %f : memref<16x12xf32> -> tensor<4x8xf32>
    %p = tile.reduce add %a over [1] : tensor<4x8xf32> -> tensor<4xf32>
    %acc = arith.addf %before, %p : tensor<4xf32>
    scf.yield %acc : tensor<4xf32>
  }
  tile.store %r, %y[d0 + %b * 4] : tensor<4xf32>, memref<16xf32>
}
