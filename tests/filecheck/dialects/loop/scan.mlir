// RUN: %roundtrip

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<16x64xf32>) -> tensor<16x64xf32> {
  // CHECK-NEXT: %y = loop.nest (%i, %j) in [16, 64] -> tensor<16x64xf32> {
  %y = loop.nest (%i, %j) in [16, 64] -> tensor<16x64xf32> {
    %a = loop.load %x[%i, %j] : tensor<16x64xf32>
    // CHECK: %s = loop.scan add %a along %j : f32
    %s = loop.scan add %a along %j : f32
    // CHECK-NEXT: %m = loop.scan max %s along %j {note} : f32
    %m = loop.scan max %s along %j {note} : f32
    loop.yield %m : f32
  }
  func.return %y : tensor<16x64xf32>
}
