// RUN: %roundtrip

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<16x64xf32>, %i: tensor<0x3xi64>) -> tensor<16x64xf32> {
  // CHECK-NEXT: %s = tensor.prefix_scan add %x along 1 {fuse.root} : tensor<16x64xf32>
  %s = tensor.prefix_scan add %x along 1 {fuse.root} : tensor<16x64xf32>
  // CHECK-NEXT: %l = tensor.prefix_scan logaddexp %s along 0 : tensor<16x64xf32>
  %l = tensor.prefix_scan logaddexp %s along 0 : tensor<16x64xf32>
  // CHECK-NEXT: %m = tensor.prefix_scan max %i along 0 : tensor<0x3xi64>
  %m = tensor.prefix_scan max %i along 0 : tensor<0x3xi64>
  // CHECK-NEXT: %r = payload.logaddexp %s, %l : tensor<16x64xf32>
  %r = payload.logaddexp %s, %l : tensor<16x64xf32>
  func.return %r : tensor<16x64xf32>
}
