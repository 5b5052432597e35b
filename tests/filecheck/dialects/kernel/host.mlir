// RUN: %roundtrip

// CHECK-LABEL: func.func @main
func.func @main(%h: memref<5x4xf32>, %r: memref<2x64xf32>, %t: index) {
  // CHECK-NEXT: %a = kernel.slice %h[%t - 1] : memref<5x4xf32> -> memref<4xf32>
  %a = kernel.slice %h[%t - 1] : memref<5x4xf32> -> memref<4xf32>
  // CHECK-NEXT: %b = kernel.slice %r[%t mod 2] : memref<2x64xf32> -> memref<3x5xf32>
  %b = kernel.slice %r[%t mod 2] : memref<2x64xf32> -> memref<3x5xf32>
  func.return
}
