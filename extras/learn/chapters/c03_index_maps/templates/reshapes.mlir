// Four more views, with quotients (floordiv) and remainders (mod). Replace the coordinates [0, 0].
//   %interleaved: x.repeat_interleave(2, 0), each row twice: rows 0, 0, 1, 1, ...
//   %repeated: x.repeat(2, 1), the tensor twice: rows 0, 1, ..., 5, 0, 1, ..., 5
//   %flat: x.flatten()
//   %reshaped: x.reshape(4, 12)
func.func @main(%x: tensor<6x8xf32>) -> (tensor<12x8xf32>, tensor<12x8xf32>, tensor<48xf32>, tensor<4x12xf32>) {
  %interleaved = tensor.index_map %x[0, 0] : tensor<6x8xf32> -> tensor<12x8xf32>
  %repeated = tensor.index_map %x[0, 0] : tensor<6x8xf32> -> tensor<12x8xf32>
  %flat = tensor.index_map %x[0, 0] : tensor<6x8xf32> -> tensor<48xf32>
  %reshaped = tensor.index_map %x[0, 0] : tensor<6x8xf32> -> tensor<4x12xf32>
  func.return %interleaved, %repeated, %flat, %reshaped
      : tensor<12x8xf32>, tensor<12x8xf32>, tensor<48xf32>, tensor<4x12xf32>
}
