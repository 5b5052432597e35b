// judged: leaves out elements
#row = #tile.layout<reg = [[1], [2], [4]], lane = [[4], [8], [16], [32], [64]], warp = []>
tile.kernel @k0(%x: memref<256xbf16>, %y: memref<256xbf16>) blocks () in [] warps 1 {
  %0 = tile.load %x[d0] : memref<256xbf16> -> tensor<256xbf16, #row>
  tile.store %0, %y[d0] : tensor<256xbf16, #row>, memref<256xbf16>
}
func.func @main(%x: tensor<256xbf16>) -> tensor<256xbf16> {
  %0 = tile.launch @k0(%x) : (tensor<256xbf16>) -> tensor<256xbf16>
  func.return %0 : tensor<256xbf16>
}
