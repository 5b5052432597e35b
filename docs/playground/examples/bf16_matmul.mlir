// A matmul of bf16 with f32 accumulators: look for the tensor core instructions in the CUDA text.
func.func @main(%a: tensor<512x512xbf16>, %b: tensor<512x512xbf16>) -> tensor<512x512xbf16> {
  %wide_a = payload.cast %a : tensor<512x512xbf16> -> tensor<512x512xf32>
  %wide_b = payload.cast %b : tensor<512x512xbf16> -> tensor<512x512xf32>
  %rows = tensor.index_map %wide_a[d0, d2] : tensor<512x512xf32> -> tensor<512x512x512xf32>
  %columns = tensor.index_map %wide_b[d2, d1] : tensor<512x512xf32> -> tensor<512x512x512xf32>
  %terms = arith.mulf %rows, %columns : tensor<512x512x512xf32>
  %dot = tensor.reduce add %terms over [2] : tensor<512x512x512xf32> -> tensor<512x512xf32>
  %y = payload.cast %dot : tensor<512x512xf32> -> tensor<512x512xbf16>
  func.return %y : tensor<512x512xbf16>
}
