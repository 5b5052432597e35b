// judged: the mean of the column is subtracted
func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %n = payload.constant 8.0 : tensor<64xf32>
  %0 = tensor.reduce add %x over [0] : tensor<8x64xf32> -> tensor<64xf32>
  %1 = arith.divf %0, %n : tensor<64xf32>
  %2 = tensor.index_map %1[d1] : tensor<64xf32> -> tensor<8x64xf32>
  %3 = arith.subf %x, %2 : tensor<8x64xf32>
  func.return %3 : tensor<8x64xf32>
}
