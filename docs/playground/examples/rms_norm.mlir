// RMSNorm: each row is divided by the root of the mean of its squares, and multiplied by a weight.
func.func @main(%x: tensor<32x512xf32>, %weight: tensor<512xf32>) -> tensor<32x512xf32> {
  %square = arith.mulf %x, %x : tensor<32x512xf32>
  %total = tensor.reduce add %square over [1] : tensor<32x512xf32> -> tensor<32xf32>
  %length = payload.constant 512.0 : tensor<32xf32>
  %mean = arith.divf %total, %length : tensor<32xf32>
  %epsilon = payload.constant 1.0e-6 : tensor<32xf32>
  %shifted = arith.addf %mean, %epsilon : tensor<32xf32>
  %inverse = math.rsqrt %shifted : tensor<32xf32>
  %scale = tensor.index_map %inverse[d0] : tensor<32xf32> -> tensor<32x512xf32>
  %unit = arith.mulf %x, %scale : tensor<32x512xf32>
  %weights = tensor.index_map %weight[d1] : tensor<512xf32> -> tensor<32x512xf32>
  %y = arith.mulf %unit, %weights : tensor<32x512xf32>
  func.return %y : tensor<32x512xf32>
}
