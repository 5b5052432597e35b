// judged: it is the negative of the expected one
func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %n = payload.constant 64.0 : tensor<8xf32>
  %0 = tensor.reduce add %x over [1] : tensor<8x64xf32> -> tensor<8xf32>
  %1 = arith.divf %0, %n : tensor<8xf32>
  %2 = tensor.index_map %1[d0] : tensor<8xf32> -> tensor<8x64xf32>
  %3 = arith.subf %2, %x : tensor<8x64xf32>
  func.return %3 : tensor<8x64xf32>
}
