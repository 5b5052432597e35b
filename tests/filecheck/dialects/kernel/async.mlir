// RUN: dl-opt %s | dl-opt | filecheck %s

// CHECK-LABEL: @copies
// CHECK:         %s = kernel.subview %r[%c0] : memref<3072xf32, "shared"> -> memref<1024xf32, "shared">
// CHECK-NEXT:    kernel.cp_async %x[%i, %c0] regs {{\[\[}}0, 1], [0, 2], [8, 0]] vec 4 where 0 <= %i < 100 steps {{\[\[}}0], [0], [8]] to %s[%i] xor regs {{\[\[}}1], [2], [64]] if %p : memref<100x64xf32>, memref<1024xf32, "shared">
// CHECK-NEXT:    kernel.cp_async %x[%i, %c0] to %s[%i] : memref<100x64xf32>, memref<1024xf32, "shared">
// CHECK-NEXT:    kernel.async_commit
// CHECK-NEXT:    kernel.async_wait 1
kernel.func @copies(%x: memref<100x64xf32>) grid [1] warps 1 {
  %i = kernel.id thread
  %c0 = arith.constant 0 : index
  %p = payload.cmp eq %i, %c0 : index
  %r = kernel.shared : memref<3072xf32, "shared">
  %s = kernel.subview %r[%c0] : memref<3072xf32, "shared"> -> memref<1024xf32, "shared">
  kernel.cp_async %x[%i, %c0] regs [[0, 1], [0, 2], [8, 0]] vec 4 where 0 <= %i < 100 steps [[0], [0], [8]]
       to %s[%i] xor regs [[1], [2], [64]] if %p : memref<100x64xf32>, memref<1024xf32, "shared">
  kernel.cp_async %x[%i, %c0] to %s[%i] : memref<100x64xf32>, memref<1024xf32, "shared">
  kernel.async_commit
  kernel.async_wait 1
}
