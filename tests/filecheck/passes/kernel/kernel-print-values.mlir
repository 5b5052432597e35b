// RUN: dl-opt %s -p 'kernel-print-values{values="%v[1,*,0]"},canonicalize,cse,dce' | filecheck %s
// RUN: dl-opt %s -p kernel-print-values | filecheck %s --check-prefix NONE
// RUN: not dl-opt %s -p 'kernel-print-values{values="k1:%v"}' 2>&1 | filecheck %s --check-prefix NAME

// NONE-NOT: kernel.print
// NAME: --print k1:%v: expected a value of the kernel k1, but got %v; --ir kernel prints their names

// The index is block, thread, register.
// CHECK-LABEL: @k0
// CHECK:         %v = kernel.load
// CHECK-NEXT:    kernel.id block
// CHECK:         kernel.indices
// CHECK:         payload.cmp eq
// CHECK:         payload.cmp eq
// CHECK-NEXT:    %[[W:.*]] = arith.andi
// CHECK-NEXT:    kernel.print "k0 %v" %v[%{{.*}}, %{{.*}}, %{{.*}}] where %[[W]] : vector<2xf32>
kernel.func @k0(%x: memref<64xf32>, %y: memref<64xf32>) grid [2] warps 1 {
  %t = kernel.id thread
  %v = kernel.load %x[%t] regs [[32]] : memref<64xf32> -> vector<2xf32>
  kernel.store %v, %y[%t] regs [[32]] : memref<64xf32>, vector<2xf32>
}
