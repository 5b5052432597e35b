// RUN: dl-opt %s -p convert-tile-to-kernel --verify-diagnostics | filecheck %s

#turned = #tile.layout<reg = [[32]], lane = [[1], [2], [4], [8], [16]], warp = []>

// CHECK: scans a layout whose bits are not in the order of the dimension
tile.kernel @k(%x: memref<64xf32>, %y: memref<64xf32>) blocks () in [] warps 1 {
  %z = payload.constant 0.0 : f32
  %a = tile.load %x[d0] : memref<64xf32> -> tensor<64xf32, #turned>
  %s, %c = tile.scan add %a, %z along 0 : tensor<64xf32, #turned>, f32
  tile.store %s, %y[d0] : tensor<64xf32, #turned>, memref<64xf32>
}
