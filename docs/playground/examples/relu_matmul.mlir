// relu(matmul(a, b) + bias). A matmul is a multiplication of broadcast operands and a reduction.
func.func @main(%a: tensor<64x128xf32>, %b: tensor<128x96xf32>, %bias: tensor<96xf32>) -> tensor<64x96xf32> {
  %rows = tensor.index_map %a[d0, d2] : tensor<64x128xf32> -> tensor<64x96x128xf32>
  %columns = tensor.index_map %b[d2, d1] : tensor<128x96xf32> -> tensor<64x96x128xf32>
  %terms = arith.mulf %rows, %columns : tensor<64x96x128xf32>
  %dot = tensor.reduce add %terms over [2] : tensor<64x96x128xf32> -> tensor<64x96xf32>
  %shift = tensor.index_map %bias[d1] : tensor<96xf32> -> tensor<64x96xf32>
  %sum = arith.addf %dot, %shift : tensor<64x96xf32>
  %zero = payload.constant 0.0 : tensor<64x96xf32>
  %y = arith.maximumf %sum, %zero : tensor<64x96xf32>
  func.return %y : tensor<64x96xf32>
}
