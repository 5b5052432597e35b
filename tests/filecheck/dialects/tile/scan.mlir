// RUN: %roundtrip

// CHECK-LABEL: tile.kernel @k
tile.kernel @k(%x: memref<8x128xf32>, %y: memref<8x128xf32>) blocks (%i) in [1] warps 1 {
  %a = tile.load %x[d0 + %i * 8, d1] : memref<8x128xf32> -> tensor<8x128xf32>
  %z = payload.constant 0.0 : tensor<8xf32>
  // CHECK: %s, %c = tile.scan add %a, %z along 1 : tensor<8x128xf32>, tensor<8xf32>
  %s, %c = tile.scan add %a, %z along 1 : tensor<8x128xf32>, tensor<8xf32>
  %one = payload.constant 0.0 : f32
  // CHECK: %t, %d = tile.scan max %c, %one along 0 : tensor<8xf32>, f32
  %t, %d = tile.scan max %c, %one along 0 : tensor<8xf32>, f32
  tile.store %s, %y[d0 + %i * 8, d1] : tensor<8x128xf32>, memref<8x128xf32>
}
