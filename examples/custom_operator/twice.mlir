func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = strength.twice %x : tensor<4xf32> -> tensor<4xf32>
  %z = arith.addf %y, %y : tensor<4xf32>
  %w = arith.addf %y, %y : tensor<4xf32>
  func.return %w : tensor<4xf32>
}
