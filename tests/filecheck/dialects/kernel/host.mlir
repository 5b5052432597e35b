// RUN: %roundtrip

// CHECK-LABEL: func.func @main
func.func @main(%h: memref<5x4xf32>, %r: memref<2x64xf32>, %t: index) {
  // CHECK-NEXT: %a = kernel.slice %h[affine_map<(d0) -> ((d0 + -1))>](%t) : memref<5x4xf32> -> memref<4xf32>
  %a = kernel.slice %h[affine_map<(t) -> (t - 1)>](%t) : memref<5x4xf32> -> memref<4xf32>
  // CHECK-NEXT: %b = kernel.slice %r[affine_map<(d0) -> ((d0 mod 2))>](%t) : memref<2x64xf32> -> memref<3x5xf32>
  %b = kernel.slice %r[affine_map<(t) -> (t mod 2)>](%t) : memref<2x64xf32> -> memref<3x5xf32>
  func.return
}
