// judged: wavefronts in place of 4
#left = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 0], [8, 0], [16, 0]]>
#right = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [1, 0], [2, 16], [4, 8], [8, 0], [16, 0], [32, 0]]>
#rows = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [4, 0], [8, 0], [16, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = []>
#columns = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [8, 0], [16, 0], [32, 0]], lane = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], warp = []>
#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [16, 0]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = []>
tile.kernel @k0(%x: memref<32x64xbf16>, %w: memref<64x32xbf16>, %y: memref<32x32xf32>) blocks () in [] warps 1 {
  %0 = tile.load %x[d0, d1] : memref<32x64xbf16> -> tensor<32x64xbf16, #rows>
  %1 = tile.stage %0 : tensor<32x64xbf16, #rows> -> tensor<32x64xbf16, #left>
  %2 = tile.load %w[d0, d1] : memref<64x32xbf16> -> tensor<64x32xbf16, #columns>
  %3 = tile.stage %2 : tensor<64x32xbf16, #columns> -> tensor<64x32xbf16, #right>
  %4 = payload.constant 0.0 : tensor<32x32xf32, #acc>
  %5 = tile.dot %1, %3, %4 atom "mma" : tensor<32x64xbf16, #left>, tensor<64x32xbf16, #right>, tensor<32x32xf32, #acc> -> tensor<32x32xf32, #acc>
  tile.store %5, %y[d0, d1] : tensor<32x32xf32, #acc>, memref<32x32xf32>
}
func.func @main(%x: tensor<32x64xbf16>, %w: tensor<64x32xbf16>) -> tensor<32x32xf32> {
  %0 = tile.launch @k0(%x, %w) : (tensor<32x64xbf16>, tensor<64x32xbf16>) -> tensor<32x32xf32>
  func.return %0 : tensor<32x32xf32>
}
