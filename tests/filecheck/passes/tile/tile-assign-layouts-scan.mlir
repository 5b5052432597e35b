// RUN: dl-opt %s --split-input-file -p tile-assign-layouts | filecheck %s

// A scanned row lies in registers, then in lanes, then in warps; other rows in the lanes and warps that are left.
// CHECK: #[[CARRY:.*]] = #tile.layout<reg = [], lane = [{{\[0\], \[0\], \[0\], \[1\], \[2\]}}], warp = [{{\[4\]}}]>
// CHECK: #[[TILE:.*]] = #tile.layout<reg = [{{\[0, 1\], \[0, 2\]}}], lane = [{{\[0, 4\], \[0, 8\], \[0, 16\], \[1, 0\], \[2, 0\]}}], warp = [{{\[4, 0\]}}]>
// CHECK: tile.scan add %{{.*}}, %{{.*}} along 1 : tensor<8x32xf32, #[[TILE]]>, tensor<8xf32, #[[CARRY]]>
tile.kernel @rows(%x: memref<8x32xf32>, %y: memref<8x32xf32>) blocks () in [] warps 2 {
  %z = payload.constant 0.0 : tensor<8xf32>
  %a = tile.load %x[d0, d1] : memref<8x32xf32> -> tensor<8x32xf32>
  %s, %c = tile.scan add %a, %z along 1 : tensor<8x32xf32>, tensor<8xf32>
  tile.store %s, %y[d0, d1] : tensor<8x32xf32>, memref<8x32xf32>
}

// -----

// Scanned columns: each thread has some of a column.
// CHECK: #[[TILE:.*]] = #tile.layout<reg = [{{\[1, 0\], \[2, 0\], \[4, 0\]}}], lane = [{{\[0, 1\], \[0, 2\], \[0, 4\], \[0, 8\], \[0, 16\]}}], warp = []>
// CHECK: tile.scan add %{{.*}}, %{{.*}} along 0 : tensor<8x32xf32, #[[TILE]]>
tile.kernel @columns(%x: memref<8x32xf32>, %y: memref<8x32xf32>) blocks () in [] warps 1 {
  %z = payload.constant 0.0 : tensor<32xf32>
  %a = tile.load %x[d0, d1] : memref<8x32xf32> -> tensor<8x32xf32>
  %s, %c = tile.scan add %a, %z along 0 : tensor<8x32xf32>, tensor<32xf32>
  tile.store %s, %y[d0, d1] : tensor<8x32xf32>, memref<8x32xf32>
}
