// Subtracts from each row of %x the mean of this row, as x - x.mean(-1, keepdim=True). At most 4 operations;
// constants do not count.
func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %n = payload.constant 64.0 : tensor<8xf32>
  // ... the rest is missing
  func.return %x : tensor<8x64xf32>
}
