// Four views of %x, a 6x8 tensor. Replace the coordinates [0, 0] of each index map.
//   %transposed: x.T
//   %slice: x[:, 2:6]
//   %flipped: x.flip(0), the last row first
//   %even: x[:, ::2], the columns 0, 2, 4 and 6
func.func @main(%x: tensor<6x8xf32>) -> (tensor<8x6xf32>, tensor<6x4xf32>, tensor<6x8xf32>, tensor<6x4xf32>) {
  %transposed = tensor.index_map %x[0, 0] : tensor<6x8xf32> -> tensor<8x6xf32>
  %slice = tensor.index_map %x[0, 0] : tensor<6x8xf32> -> tensor<6x4xf32>
  %flipped = tensor.index_map %x[0, 0] : tensor<6x8xf32> -> tensor<6x8xf32>
  %even = tensor.index_map %x[0, 0] : tensor<6x8xf32> -> tensor<6x4xf32>
  func.return %transposed, %slice, %flipped, %even
      : tensor<8x6xf32>, tensor<6x4xf32>, tensor<6x8xf32>, tensor<6x4xf32>
}
