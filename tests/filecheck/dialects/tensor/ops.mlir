// RUN: %roundtrip

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<16x64xf32>, %t: tensor<100x8xbf16>, %i: tensor<5x8xi64>, %e: tensor<0x3xi32>, %z: f32) -> tensor<16xf32> {
  // CHECK: %v = tensor.index_map %x[d0, d1 * 8 + d2] {fuse.root} : tensor<16x64xf32> -> tensor<16x8x8xf32>
  %v = tensor.index_map %x[d0, d1 * 8 + d2] {fuse.root} : tensor<16x64xf32> -> tensor<16x8x8xf32>
  // CHECK-NEXT: %p = tensor.index_map %x[d0 - 1, d1] where 0 <= d0 - 1 < 16 else %z : tensor<16x64xf32> -> tensor<18x64xf32>
  %p = tensor.index_map %x[d0 - 1, d1] where 0 <= d0 - 1 < 16 else %z : tensor<16x64xf32> -> tensor<18x64xf32>
  // CHECK-NEXT: %g = tensor.gather %t[%i, d1] : tensor<100x8xbf16> -> tensor<5x8xbf16>
  %g = tensor.gather %t[%i, d1] : tensor<100x8xbf16> -> tensor<5x8xbf16>
  // CHECK-NEXT: %s = tensor.reduce add %x over [1] : tensor<16x64xf32> -> tensor<16xf32>
  %s = tensor.reduce add %x over [1] : tensor<16x64xf32> -> tensor<16xf32>
  // CHECK-NEXT: %m = tensor.reduce max %e over [0, 1] : tensor<0x3xi32> -> tensor<i32>
  %m = tensor.reduce max %e over [0, 1] : tensor<0x3xi32> -> tensor<i32>
  // CHECK-NEXT: %n = tensor.iota 1 : tensor<4x5xi64>
  %n = tensor.iota 1 : tensor<4x5xi64>
  // CHECK-NEXT: %c = payload.constant 0xff800000 : tensor<16xf32>
  %c = payload.constant 0xff800000 : tensor<16xf32>
  // CHECK-NEXT: %b = arith.maximumf %s, %c {fuse.root} : tensor<16xf32>
  %b = arith.maximumf %s, %c {fuse.root} : tensor<16xf32>
  // CHECK-NEXT: %f = payload.fmod %b, %s {fuse.root} : tensor<16xf32>
  %f = payload.fmod %b, %s {fuse.root} : tensor<16xf32>
  // CHECK-NEXT: %j = payload.combine_bf16x3 %b, %f, %s : tensor<16xf32>
  %j = payload.combine_bf16x3 %b, %f, %s : tensor<16xf32>
  func.return %f : tensor<16xf32>
}
