"""The tensor IR of a linear layer, as text."""

from __future__ import annotations

LINEAR = """
func.func @main(%x: tensor<128x1024xbf16>, %w: tensor<1024x512xbf16>) -> tensor<128x512xbf16> {
  %0 = payload.cast %x : tensor<128x1024xbf16> -> tensor<128x1024xf32>
  %1 = tensor.index_map %0[d0, d2] : tensor<128x1024xf32> -> tensor<128x512x1024xf32>
  %2 = payload.cast %w : tensor<1024x512xbf16> -> tensor<1024x512xf32>
  %3 = tensor.index_map %2[d2, d1] : tensor<1024x512xf32> -> tensor<128x512x1024xf32>
  %4 = arith.mulf %1, %3 : tensor<128x512x1024xf32>
  %5 = tensor.reduce add %4 over [2] : tensor<128x512x1024xf32> -> tensor<128x512xf32>
  %y = payload.cast %5 : tensor<128x512xf32> -> tensor<128x512xbf16>
  func.return %y : tensor<128x512xbf16>
}
"""
