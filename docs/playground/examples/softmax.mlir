// Softmax of each row. The two reductions depend on each other; a pass turns them into one.
func.func @main(%x: tensor<64x256xf32>) -> tensor<64x256xf32> {
  %largest = tensor.reduce max %x over [1] : tensor<64x256xf32> -> tensor<64xf32>
  %top = tensor.index_map %largest[d0] : tensor<64xf32> -> tensor<64x256xf32>
  %shifted = arith.subf %x, %top : tensor<64x256xf32>
  %power = math.exp %shifted : tensor<64x256xf32>
  %sum = tensor.reduce add %power over [1] : tensor<64x256xf32> -> tensor<64xf32>
  %total = tensor.index_map %sum[d0] : tensor<64xf32> -> tensor<64x256xf32>
  %y = arith.divf %power, %total : tensor<64x256xf32>
  func.return %y : tensor<64x256xf32>
}
