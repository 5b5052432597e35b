// judged: 2_1_scale_rows.mlir:3:50: Expected '->'
func.func @main(%x: tensor<8x64xf32>, %s: tensor<8xf32>) -> tensor<8x64xf32> {
  %0 = tensor.index_map %s[d0] : tensor<8x64xf32>
  %1 = arith.mulf %x, %0 : tensor<8x64xf32>
  func.return %1 : tensor<8x64xf32>
}
