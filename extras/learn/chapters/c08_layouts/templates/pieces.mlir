// A warp copies a row of 256 bf16. Each lane has 8 registers. It moves one element at a time, by 8 loads of 2 bytes.
// ... Change #row so that a lane moves its 8 elements at once, by one load of 16 bytes.
#row = #tile.layout<reg = [[32], [64], [128]], lane = [[1], [2], [4], [8], [16]], warp = []>
tile.kernel @k0(%x: memref<256xbf16>, %y: memref<256xbf16>) blocks () in [] warps 1 {
  %0 = tile.load %x[d0] : memref<256xbf16> -> tensor<256xbf16, #row>
  tile.store %0, %y[d0] : tensor<256xbf16, #row>, memref<256xbf16>
}
func.func @main(%x: tensor<256xbf16>) -> tensor<256xbf16> {
  %0 = tile.launch @k0(%x) : (tensor<256xbf16>) -> tensor<256xbf16>
  func.return %0 : tensor<256xbf16>
}
