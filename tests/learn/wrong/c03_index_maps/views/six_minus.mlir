// judged: coordinate 0 is 6, outside 0..5, at d0 = 0, d1 = 0
func.func @main(%x: tensor<6x8xf32>) -> (tensor<8x6xf32>, tensor<6x4xf32>, tensor<6x8xf32>, tensor<6x4xf32>) {
  %transposed = tensor.index_map %x[d1, d0] : tensor<6x8xf32> -> tensor<8x6xf32>
  %slice = tensor.index_map %x[d0, d1 + 2] : tensor<6x8xf32> -> tensor<6x4xf32>
  %flipped = tensor.index_map %x[6 - d0, d1] : tensor<6x8xf32> -> tensor<6x8xf32>
  %even = tensor.index_map %x[d0, d1 * 2] : tensor<6x8xf32> -> tensor<6x4xf32>
  func.return %transposed, %slice, %flipped, %even
      : tensor<8x6xf32>, tensor<6x4xf32>, tensor<6x8xf32>, tensor<6x4xf32>
}
