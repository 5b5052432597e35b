// judged: #sums does not fit #tile
#tile = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [0, 128]], lane = [[0, 8], [0, 16], [0, 32], [0, 64], [1, 0]], warp = [[2, 0]]>
#sums = #tile.layout<reg = [[1], [2]], lane = [[0], [0], [0], [0], [0]], warp = [[0]]>
tile.kernel @k0(%x: memref<4x256xbf16>, %y: memref<4xf32>) blocks () in [] warps 2 {
  %0 = tile.load %x[d0, d1] : memref<4x256xbf16> -> tensor<4x256xbf16, #tile>
  %1 = payload.cast %0 : tensor<4x256xbf16, #tile> -> tensor<4x256xf32, #tile>
  %2 = tile.reduce add %1 over [1] : tensor<4x256xf32, #tile> -> tensor<4xf32, #sums>
  tile.store %2, %y[d0] : tensor<4xf32, #sums>, memref<4xf32>
}
func.func @main(%x: tensor<4x256xbf16>) -> tensor<4xf32> {
  %0 = tile.launch @k0(%x) : (tensor<4x256xbf16>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
