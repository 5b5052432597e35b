// judged: the sum of the row is subtracted, not its mean
func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %n = payload.constant 64.0 : tensor<8xf32>
  %0 = tensor.reduce add %x over [1] : tensor<8x64xf32> -> tensor<8xf32>
  %1 = arith.divf %0, %n : tensor<8xf32>
  %2 = tensor.index_map %0[d0] : tensor<8xf32> -> tensor<8x64xf32>
  %3 = arith.subf %x, %2 : tensor<8x64xf32>
  func.return %3 : tensor<8x64xf32>
}
