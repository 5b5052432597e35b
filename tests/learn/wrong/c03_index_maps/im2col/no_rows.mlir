// judged: coordinate 0 is -1, outside 0..5
func.func @main(%x: tensor<6x8xf32>, %w: tensor<9xf32>) -> (tensor<48x9xf32>, tensor<48xf32>) {
  %zero = payload.constant 0.0 : f32
  %patches = tensor.index_map %x[d0 floordiv 8 + d1 floordiv 3 - 1, d0 mod 8 + d1 mod 3 - 1]
      where 0 <= d0 mod 8 + d1 mod 3 - 1 < 8 else %zero
      : tensor<6x8xf32> -> tensor<48x9xf32>
  %weights = tensor.index_map %w[d1] : tensor<9xf32> -> tensor<48x9xf32>
  %products = arith.mulf %patches, %weights : tensor<48x9xf32>
  %y = tensor.reduce add %products over [1] : tensor<48x9xf32> -> tensor<48xf32>
  func.return %patches, %y : tensor<48x9xf32>, tensor<48xf32>
}
