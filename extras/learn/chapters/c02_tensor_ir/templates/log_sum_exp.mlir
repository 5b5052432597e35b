// The logarithm of the sum of the exponentials of each row, as torch.logsumexp(x, -1). At most 7 operations.
// It must be right for large x too: exp(100) is no f32, but the result for a row of 100s is 104.16.
func.func @main(%x: tensor<8x64xf32>) -> tensor<8xf32> {
  %0 = tensor.reduce max %x over [1] : tensor<8x64xf32> -> tensor<8xf32>
  // ... the rest is missing
  func.return %0 : tensor<8xf32>
}
