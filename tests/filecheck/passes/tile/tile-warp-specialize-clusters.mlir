// RUN: dl-opt %s -p tile-warp-specialize --split-input-file --remarks --verify-diagnostics | filecheck %s

// Blocks of a cluster have one row of tiles: they load the left operand multicast, the right one each for itself.

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#m = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [16, 0], [32, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = [[4, 0], [8, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// CHECK:       tile.stage: the blocks of a cluster need different boxes
// CHECK-LABEL: tile.kernel @product
// CHECK-SAME:    in [4, 8] warps 4 cluster 2
// CHECK:       } producer
// CHECK:         %a = tile.tma_load %x[d0 + %i * 64, d1 + %k_1 * 64] multicast
// CHECK-NEXT:    %c = tile.tma_load %w[d0 + %j * 64, d1 + %k_1 * 64] :
// CHECK-NEXT:    tile.producer_load %ring, %a, %c
tile.kernel @product(%x: memref<256x512xbf16>, %w: memref<512x512xbf16>, %y: memref<256x512xf32>) blocks (%i, %j) in [4, 8] warps 4
    attributes {schedule = #tile.schedule<block = [64, 64], chunk = [64], warps = 4, atom = wgmma, copy = tma, stages = 3, cluster = 2>} {
  %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %c0 = payload.constant 0 : index
  %c1 = payload.constant 1 : index
  %c8 = payload.constant 8 : index
  %s = scf.for %k = %c0 to %c8 step %c1 iter_args(%acc = %zero) -> (tensor<64x64xf32, #acc>) {
    %a = tile.load %x[d0 + %i * 64, d1 + %k * 64] : memref<256x512xbf16> -> tensor<64x64xbf16, #m>
    %a_shared = tile.stage %a : tensor<64x64xbf16, #m> -> tensor<64x64xbf16, #b>
    %c = tile.load %w[d0 + %j * 64, d1 + %k * 64] : memref<512x512xbf16> -> tensor<64x64xbf16, #m>
    %c_shared = tile.stage %c : tensor<64x64xbf16, #m> -> tensor<64x64xbf16, #b>
    %n = tile.dot %a_shared, %c_shared, %acc atom "wgmma"
      : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
    scf.yield %n : tensor<64x64xf32, #acc>
  }
  tile.store %s, %y[d0 + %i * 64, d1 + %j * 64] : tensor<64x64xf32, #acc>, memref<256x512xf32>
}

// -----

// Through the arithmetic of persistent blocks in patches of four tiles down: neighbours have the same column.

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#m = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [16, 0], [32, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = [[4, 0], [8, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// CHECK:       tile.stage: the blocks of a cluster need different boxes
// CHECK-LABEL: tile.kernel @persistent
// CHECK-SAME:    in [8] warps 4 cluster 4
// CHECK:         %c = tile.tma_load %w{{.*}} multicast
tile.kernel @persistent(%x: memref<256x64xbf16>, %w: memref<512x64xbf16>, %y: memref<256x512xf32>) blocks (%block) in [8] warps 4
    attributes {schedule = #tile.schedule<block = [64, 64], chunk = [64], warps = 4, atom = wgmma, copy = tma, stages = 3, cluster = 4>} {
  %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %c8 = payload.constant 8 : index
  %c32 = payload.constant 32 : index
  scf.for %t = %block to %c32 step %c8 {
    %g = tile.affine %t floordiv 32 : index
    %j = tile.affine (%t floordiv 4) mod 8 : index
    %p = tile.affine %t mod 4 : index
    %i = tile.affine %g * 4 + %p : index
    %a = tile.load %x[d0 + %i * 64, d1] : memref<256x64xbf16> -> tensor<64x64xbf16, #m>
    %a_shared = tile.stage %a : tensor<64x64xbf16, #m> -> tensor<64x64xbf16, #b>
    %c = tile.load %w[d0 + %j * 64, d1] : memref<512x64xbf16> -> tensor<64x64xbf16, #m>
    %c_shared = tile.stage %c : tensor<64x64xbf16, #m> -> tensor<64x64xbf16, #b>
    %n = tile.dot %a_shared, %c_shared, %zero atom "wgmma"
      : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
    tile.store %n, %y[d0 + %i * 64, d1 + %j * 64] : tensor<64x64xf32, #acc>, memref<256x512xf32>
  }
}

// -----

// How often a block goes through the loop depends on its rank: what they have in common they need at different times.

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#m = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [16, 0], [32, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = [[4, 0], [8, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// CHECK-DAG:   tile.stage: the blocks of a cluster need the box in different iterations
// CHECK-DAG:   tile.stage: the blocks of a cluster need different boxes
// CHECK-LABEL: tile.kernel @triangle
// CHECK-SAME:    in [8] warps 4 attributes
// CHECK-NOT:     multicast
tile.kernel @triangle(%x: memref<512x512xbf16>, %w: memref<64x512xbf16>, %y: memref<512x64xf32>) blocks (%i) in [8] warps 4
    attributes {schedule = #tile.schedule<block = [64, 64], chunk = [64], warps = 4, atom = wgmma, copy = tma, stages = 3, cluster = 2>} {
  %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %c0 = payload.constant 0 : index
  %c1 = payload.constant 1 : index
  %s = scf.for %k = %c0 to %i step %c1 iter_args(%acc = %zero) -> (tensor<64x64xf32, #acc>) {
    %a = tile.load %x[d0 + %i * 64, d1 + %k * 64] : memref<512x512xbf16> -> tensor<64x64xbf16, #m>
    %a_shared = tile.stage %a : tensor<64x64xbf16, #m> -> tensor<64x64xbf16, #b>
    %c = tile.load %w[d0, d1 + %k * 64] : memref<64x512xbf16> -> tensor<64x64xbf16, #m>
    %c_shared = tile.stage %c : tensor<64x64xbf16, #m> -> tensor<64x64xbf16, #b>
    %n = tile.dot %a_shared, %c_shared, %acc atom "wgmma"
      : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
    scf.yield %n : tensor<64x64xf32, #acc>
  }
  tile.store %s, %y[d0 + %i * 64, d1] : tensor<64x64xf32, #acc>, memref<512x64xf32>
}

// -----

// A grid that clusters do not make up, and a box whose parts would start in the middle of a swizzle.

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#m = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [16, 0], [32, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = [[4, 0], [8, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// CHECK:       tile.kernel: the last extent of the grid is no multiple of clusters of 2
// CHECK-LABEL: tile.kernel @odd
// CHECK-NOT:     multicast
tile.kernel @odd(%x: memref<192x64xbf16>, %y: memref<192x64xf32>) blocks (%i) in [3] warps 4
    attributes {schedule = #tile.schedule<block = [64, 64], chunk = [64], warps = 4, atom = wgmma, copy = tma, cluster = 2>} {
  %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
  %a = tile.load %x[d0, d1] : memref<192x64xbf16> -> tensor<64x64xbf16, #m>
  %a_shared = tile.stage %a : tensor<64x64xbf16, #m> -> tensor<64x64xbf16, #b>
  %n = tile.dot %a_shared, %a_shared, %zero atom "wgmma"
    : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
  tile.store %n, %y[d0 + %i * 64, d1] : tensor<64x64xf32, #acc>, memref<192x64xf32>
}
