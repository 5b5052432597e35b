// judged: the results are right but take 2 index maps; 1 suffices
func.func @main(%x: tensor<6x8xf32>) -> tensor<6x6xf32> {
  %zero = payload.constant 0.0 : f32
  %0 = tensor.index_map %x[d1, d0] : tensor<6x8xf32> -> tensor<8x6xf32>
  %3 = tensor.index_map %0[d0, 5 - d1] where 0 <= d0 - 1 < 5 else %zero : tensor<8x6xf32> -> tensor<6x6xf32>
  func.return %3 : tensor<6x6xf32>
}
