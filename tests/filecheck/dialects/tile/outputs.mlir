// RUN: %roundtrip

#s = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0]]>

// CHECK-LABEL: tile.kernel @outputs
// CHECK:         %p = tile.slice %x at [0, 16] : tensor<8x32xbf16> -> tensor<8x16xbf16>
// CHECK:         tile.tma_store %s, %y[d0 + %i * 8, d1 + 16] : tensor<8x16xbf16, #shared>, memref<16x32xbf16>
tile.kernel @outputs(%a: memref<16x32xbf16>, %y: memref<16x32xbf16>) blocks (%i) in [2] warps 4 {
  %x = tile.load %a[d0 + %i * 8, d1] : memref<16x32xbf16> -> tensor<8x32xbf16>
  %p = tile.slice %x at [0, 16] : tensor<8x32xbf16> -> tensor<8x16xbf16>
  %s = tile.stage %p : tensor<8x16xbf16> -> tensor<8x16xbf16, #s>
  tile.tma_store %s, %y[d0 + %i * 8, d1 + 16]
    : tensor<8x16xbf16, #s>, memref<16x32xbf16>
}
