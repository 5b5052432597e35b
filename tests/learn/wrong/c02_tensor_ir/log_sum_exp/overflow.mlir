// judged: not finite
func.func @main(%x: tensor<8x64xf32>) -> tensor<8xf32> {
  %0 = tensor.reduce max %x over [1] : tensor<8x64xf32> -> tensor<8xf32>
  %z = payload.constant 0.0 : tensor<8x64xf32>
  %2 = arith.addf %x, %z : tensor<8x64xf32>
  %3 = math.exp %2 : tensor<8x64xf32>
  %4 = tensor.reduce add %3 over [1] : tensor<8x64xf32> -> tensor<8xf32>
  %5 = math.log %4 : tensor<8xf32>
  %y = payload.constant 0.0 : tensor<8xf32>
  %6 = arith.addf %5, %y : tensor<8xf32>
  func.return %6 : tensor<8xf32>
}
