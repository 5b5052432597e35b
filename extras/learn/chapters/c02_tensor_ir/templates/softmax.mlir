// Softmax over the rows of %x, in at most 7 operations:
//   exp(x - m) / s, where m is the maximum of a row and s the sum of the exponentials of a row.
func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %0 = tensor.reduce max %x over [1] : tensor<8x64xf32> -> tensor<8xf32>
  // ... the rest is missing
  func.return %x : tensor<8x64xf32>
}
