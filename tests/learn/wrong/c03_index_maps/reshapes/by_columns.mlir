// judged: the elements are taken column by column
func.func @main(%x: tensor<6x8xf32>) -> (tensor<12x8xf32>, tensor<12x8xf32>, tensor<48xf32>, tensor<4x12xf32>) {
  %interleaved = tensor.index_map %x[d0 floordiv 2, d1] : tensor<6x8xf32> -> tensor<12x8xf32>
  %repeated = tensor.index_map %x[d0 mod 6, d1] : tensor<6x8xf32> -> tensor<12x8xf32>
  %flat = tensor.index_map %x[d0 mod 6, d0 floordiv 6] : tensor<6x8xf32> -> tensor<48xf32>
  %reshaped = tensor.index_map %x[(d0 * 12 + d1) floordiv 8, (d0 * 12 + d1) mod 8] : tensor<6x8xf32> -> tensor<4x12xf32>
  func.return %interleaved, %repeated, %flat, %reshaped
      : tensor<12x8xf32>, tensor<12x8xf32>, tensor<48xf32>, tensor<4x12xf32>
}
