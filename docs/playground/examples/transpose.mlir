// A transpose is one index map. Element [d0, d1] of the result is element [d1, d0] of x.
func.func @main(%x: tensor<64x96xf32>) -> tensor<96x64xf32> {
  %y = tensor.index_map %x[d1, d0] : tensor<64x96xf32> -> tensor<96x64xf32>
  func.return %y : tensor<96x64xf32>
}
