// judged: %w is read at the row, d0
func.func @main(%x: tensor<8x64xf32>, %w: tensor<64xf32>, %b: tensor<64xf32>) -> tensor<8x64xf32> {
  %n = payload.constant 64.0 : tensor<8xf32>
  %eps = payload.constant 1.0e-5 : tensor<8xf32>
  %0 = tensor.reduce add %x over [1] : tensor<8x64xf32> -> tensor<8xf32>
  %1 = arith.divf %0, %n : tensor<8xf32>
  %2 = tensor.index_map %1[d0] : tensor<8xf32> -> tensor<8x64xf32>
  %3 = arith.subf %x, %2 : tensor<8x64xf32>
  %4 = arith.mulf %3, %3 : tensor<8x64xf32>
  %5 = tensor.reduce add %4 over [1] : tensor<8x64xf32> -> tensor<8xf32>
  %6 = arith.divf %5, %n : tensor<8xf32>
  %7 = arith.addf %6, %eps : tensor<8xf32>
  %8 = math.rsqrt %7 : tensor<8xf32>
  %9 = tensor.index_map %8[d0] : tensor<8xf32> -> tensor<8x64xf32>
  %10 = arith.mulf %3, %9 : tensor<8x64xf32>
  %11 = tensor.index_map %w[d0] : tensor<64xf32> -> tensor<8x64xf32>
  %12 = arith.mulf %10, %11 : tensor<8x64xf32>
  %13 = tensor.index_map %b[d1] : tensor<64xf32> -> tensor<8x64xf32>
  %14 = arith.addf %12, %13 : tensor<8x64xf32>
  func.return %14 : tensor<8x64xf32>
}
