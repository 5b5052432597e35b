// F.pad(x, (1, 2, 1, 1)): a border of zeros around %x, one column on the left, two on the right, one row above
// and one below. One index map.
func.func @main(%x: tensor<6x8xf32>) -> tensor<8x11xf32> {
  %zero = payload.constant 0.0 : f32
  // ... replace the coordinates and the domain
  %0 = tensor.index_map %x[0, 0] where 0 <= d0 < 0 else %zero : tensor<6x8xf32> -> tensor<8x11xf32>
  func.return %0 : tensor<8x11xf32>
}
