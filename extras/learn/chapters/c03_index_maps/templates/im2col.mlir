// A 3x3 convolution of a 6x8 image with a border of zeros (padding=1), as a matrix times a vector.
// Row p of %patches belongs to pixel p of the flattened image. Its 9 columns are the pixel's 3x3 neighbours, row by
// row: column 4 is the pixel itself, column 0 is the pixel one row above and one column to the left.
// A neighbour outside of the image is zero. %patches is one index map of %x.
func.func @main(%x: tensor<6x8xf32>, %w: tensor<9xf32>) -> (tensor<48x9xf32>, tensor<48xf32>) {
  %zero = payload.constant 0.0 : f32
  // ... replace the coordinates and the domain
  %patches = tensor.index_map %x[0, 0] where 0 <= d0 < 0 else %zero : tensor<6x8xf32> -> tensor<48x9xf32>
  %weights = tensor.index_map %w[d1] : tensor<9xf32> -> tensor<48x9xf32>
  %products = arith.mulf %patches, %weights : tensor<48x9xf32>
  %y = tensor.reduce add %products over [1] : tensor<48x9xf32> -> tensor<48xf32>
  func.return %patches, %y : tensor<48x9xf32>, tensor<48xf32>
}
