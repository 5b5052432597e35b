// judged: result 0 is %x, an argument of @main
func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %0 = tensor.reduce max %x over [1] : tensor<8x64xf32> -> tensor<8xf32>
  %1 = tensor.index_map %0[d0] : tensor<8xf32> -> tensor<8x64xf32>
  %2 = arith.subf %x, %1 : tensor<8x64xf32>
  %3 = math.exp %2 : tensor<8x64xf32>
  %4 = tensor.reduce add %3 over [1] : tensor<8x64xf32> -> tensor<8xf32>
  %5 = tensor.index_map %4[d0] : tensor<8xf32> -> tensor<8x64xf32>
  %6 = arith.divf %3, %5 : tensor<8x64xf32>
  func.return %x : tensor<8x64xf32>
}
