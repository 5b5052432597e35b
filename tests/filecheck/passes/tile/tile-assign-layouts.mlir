// RUN: dl-opt %s --split-input-file -p tile-assign-layouts | filecheck %s

// A row program: 16 bytes a thread, and the row sums as a slice of the rows. Warps go to different rows first.

// CHECK:       #layout = #tile.layout<reg = {{\[\[}}0, 1], [0, 2], [2, 0]], lane = {{\[\[}}0, 4], [0, 8], [0, 16], [0, 32], [0, 64]], warp = {{\[\[}}1, 0]]>
// CHECK-NEXT:  #layout1 = #tile.layout<reg = {{\[\[}}2]], lane = {{\[\[}}0], [0], [0], [0], [0]], warp = {{\[\[}}1]]>
// CHECK:       tile.kernel @rows
// CHECK-NEXT:    %v = tile.load {{.*}} -> tensor<4x128xf32, #layout>
// CHECK-NEXT:    %s = tile.reduce add %v over [1] : tensor<4x128xf32, #layout> -> tensor<4xf32, #layout1>
// CHECK-NEXT:    %b = tile.broadcast %s along [1] : tensor<4xf32, #layout1> -> tensor<4x128xf32, #layout>
// CHECK-NEXT:    %r = arith.divf %v, %b : tensor<4x128xf32, #layout>
// CHECK-NEXT:    tile.store %r
tile.kernel @rows(%x: memref<8x128xf32>, %y: memref<8x128xf32>) blocks (%i) in [2] warps 2 {
  %v = tile.load %x[d0 + %i * 4, d1] : memref<8x128xf32> -> tensor<4x128xf32>
  %s = tile.reduce add %v over [1] : tensor<4x128xf32> -> tensor<4xf32>
  %b = tile.broadcast %s along [1] : tensor<4xf32> -> tensor<4x128xf32>
  %r = arith.divf %v, %b : tensor<4x128xf32>
  tile.store %r, %y[d0 + %i * 4, d1] : tensor<4x128xf32>, memref<8x128xf32>
}

// -----

// An accumulator is a patch a thread; its epilogue has that layout too. The constant is no tie between the two sides.

// CHECK:       #acc = #tile.layout<reg = {{\[\[}}0, 1], [1, 0], [2, 0]], lane = {{\[\[}}0, 2], [0, 4], [0, 8], [4, 0], [8, 0]], warp = []>
// CHECK:       tile.kernel @dot
// CHECK:         %a = tile.load {{.*}} -> tensor<16x8xf32, #layout>
// CHECK-NEXT:    %b = tile.load {{.*}} -> tensor<8x16xf32, #layout1>
// CHECK-NEXT:    %c = tile.dot %a, %b, %zero_1 : {{.*}} -> tensor<16x16xf32, #acc>
// CHECK-NEXT:    %r = arith.maximumf %c, %zero : tensor<16x16xf32, #acc>
tile.kernel @dot(%x: memref<16x8xf32>, %w: memref<8x16xf32>, %y: memref<16x16xf32>) blocks () in [] warps 1
    attributes {schedule = #tile.schedule<block = [16, 16], chunk = [8], thread = [4, 2], warps = 1>} {
  %zero = payload.constant 0.0 : tensor<16x16xf32>
  %a = tile.load %x[d0, d1] : memref<16x8xf32> -> tensor<16x8xf32>
  %b = tile.load %w[d0, d1] : memref<8x16xf32> -> tensor<8x16xf32>
  %c = tile.dot %a, %b, %zero : tensor<16x8xf32>, tensor<8x16xf32>, tensor<16x16xf32> -> tensor<16x16xf32>
  %r = arith.maximumf %c, %zero : tensor<16x16xf32>
  tile.store %r, %y[d0, d1] : tensor<16x16xf32>, memref<16x16xf32>
}

// -----

// A column of values that is stored by itself and also repeated over rows of another layout is converted.

// CHECK:       #layout = #tile.layout<reg = {{.*}}, lane = {{\[\[}}0], [0], [0], [0], [1]], warp = []>
// CHECK:       #layout2 = #tile.layout<reg = {{\[\[}}1], [2]], lane = {{\[\[}}4], [8], [16], [32], [0]], warp = []>
// CHECK:       tile.kernel @convert
// CHECK:         %r = tile.broadcast %c along [1] : tensor<64xf32, #layout>
// CHECK-NEXT:    %c_1 = tile.convert_layout %c via "shared" : tensor<64xf32, #layout> -> tensor<64xf32, #layout2>
// CHECK-NEXT:    %q = tile.broadcast %c_1 along [0] : tensor<64xf32, #layout2> -> tensor<64x64xf32, #layout1>
tile.kernel @convert(%x: memref<64xf32>, %t: memref<64x64xf32>, %y: memref<64x64xf32>) blocks () in [] warps 1 {
  %c = tile.load %x[d0] : memref<64xf32> -> tensor<64xf32>
  %r = tile.broadcast %c along [1] : tensor<64xf32> -> tensor<64x64xf32>
  %q = tile.broadcast %c along [0] : tensor<64xf32> -> tensor<64x64xf32>
  %v = tile.load %t[d0, d1] : memref<64x64xf32> -> tensor<64x64xf32>
  %s = arith.addf %r, %v : tensor<64x64xf32>
  %u = arith.mulf %s, %q : tensor<64x64xf32>
  tile.store %u, %y[d0, d1] : tensor<64x64xf32>, memref<64x64xf32>
}

// -----

// A layout that somebody wrote is kept, and spreads.

// CHECK:       #layout = #tile.layout<reg = {{\[\[}}32]], lane = {{\[\[}}1], [2], [4], [8], [16]], warp = []>
// CHECK-NEXT:  builtin.module
// CHECK:         %n = arith.negf %c : tensor<64xf32, #layout>
tile.kernel @given(%x: memref<64xf32>, %y: memref<64xf32>) blocks () in [] warps 1 {
  %c = tile.load %x[d0] : memref<64xf32> -> tensor<64xf32, #tile.layout<reg = [[32]], lane = [[1], [2], [4], [8], [16]], warp = []>>
  %n = arith.negf %c : tensor<64xf32, #tile.layout<reg = [[32]], lane = [[1], [2], [4], [8], [16]], warp = []>>
  tile.store %n, %y[d0] : tensor<64xf32, #tile.layout<reg = [[32]], lane = [[1], [2], [4], [8], [16]], warp = []>>, memref<64xf32>
}

// -----

// A transpose: the load goes along its own rows, the store along its own, and the tile is converted between them.

// CHECK:       #layout = #tile.layout<reg = {{\[\[}}1, 0], [2, 0]], lane = {{\[\[}}4, 0], [8, 0], [16, 0], [0, 1], [0, 2]], warp = {{\[\[}}0, 4], [0, 8], [0, 16]]>
// CHECK-NEXT:  #layout1 = #tile.layout<reg = {{\[\[}}0, 1], [0, 2]], lane = {{\[\[}}0, 4], [0, 8], [0, 16], [1, 0], [2, 0]], warp = {{\[\[}}4, 0], [8, 0], [16, 0]]>
// CHECK:       tile.kernel @transpose
// CHECK-NEXT:    %v = tile.load {{.*}} -> tensor<32x32xf32, #layout>
// CHECK-NEXT:    %v_1 = tile.convert_layout %v via "shared" : tensor<32x32xf32, #layout> -> tensor<32x32xf32, #layout1>
// CHECK-NEXT:    %w = tile.load {{.*}} -> tensor<32x32xf32, #layout1>
// CHECK-NEXT:    %s = arith.addf %v_1, %w : tensor<32x32xf32, #layout1>
// CHECK-NEXT:    tile.store %s, {{.*}} : tensor<32x32xf32, #layout1>
tile.kernel @transpose(%x: memref<32x32xf32>, %t: memref<32x32xf32>, %y: memref<32x32xf32>) blocks () in [] warps 8 {
  %v = tile.load %x[d1, d0] : memref<32x32xf32> -> tensor<32x32xf32>
  %w = tile.load %t[d0, d1] : memref<32x32xf32> -> tensor<32x32xf32>
  %s = arith.addf %v, %w : tensor<32x32xf32>
  tile.store %s, %y[d0, d1] : tensor<32x32xf32>, memref<32x32xf32>
}

// -----

// Tensor cores: weights along k may be read in any order of columns, so a thread gets eight neighbours of the result.

// CHECK:       #acc = #tile.layout<reg = {{\[\[}}0, 1], [0, 2], [0, 4], [8, 0], [16, 0]], lane = {{\[\[}}0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], warp = []>
// CHECK:       tile.kernel @tensor_cores
// CHECK:         tile.dot {{.*}} atom "mma" : {{.*}} -> tensor<32x32xf32, #acc>
// CHECK-NEXT:    %d = payload.cast {{.*}} -> tensor<32x32xbf16, #acc>
// CHECK-NEXT:    tile.store %d
tile.kernel @tensor_cores(%x: memref<32x32xbf16>, %w: memref<32x32xbf16>, %y: memref<32x32xbf16>) blocks () in [] warps 1 {
  %zero = payload.constant 0.0 : tensor<32x32xf32>
  %a = tile.load %x[d0, d1] : memref<32x32xbf16> -> tensor<32x32xbf16>
  %b = tile.load %w[d1, d0] : memref<32x32xbf16> -> tensor<32x32xbf16>
  %c = tile.dot %a, %b, %zero atom "mma" : tensor<32x32xbf16>, tensor<32x32xbf16>, tensor<32x32xf32> -> tensor<32x32xf32>
  %d = payload.cast %c : tensor<32x32xf32> -> tensor<32x32xbf16>
  tile.store %d, %y[d0, d1] : tensor<32x32xbf16>, memref<32x32xbf16>
}

// -----

// With weights along the columns the atom's own order stays, and the result goes to wide stores by a
// conversion: four lanes exchange what they have of a row.

// CHECK:       #acc = #tile.layout<reg = {{\[\[}}0, 1], [8, 0], [0, 8], [0, 16], [16, 0]], lane = {{\[\[}}0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = []>
// CHECK:       tile.kernel @tensor_cores_trans
// CHECK:         %d = payload.cast {{.*}} -> tensor<32x32xbf16, #acc>
// CHECK-NEXT:    %[[W:.*]] = tile.convert_layout %d via "shuffles" : tensor<32x32xbf16, #acc> -> tensor<32x32xbf16, #layout>
// CHECK-NEXT:    tile.store %[[W]]
tile.kernel @tensor_cores_trans(%x: memref<32x32xbf16>, %w: memref<32x32xbf16>, %y: memref<32x32xbf16>) blocks () in [] warps 1 {
  %zero = payload.constant 0.0 : tensor<32x32xf32>
  %a = tile.load %x[d0, d1] : memref<32x32xbf16> -> tensor<32x32xbf16>
  %b = tile.load %w[d0, d1] : memref<32x32xbf16> -> tensor<32x32xbf16>
  %c = tile.dot %a, %b, %zero atom "mma" : tensor<32x32xbf16>, tensor<32x32xbf16>, tensor<32x32xf32> -> tensor<32x32xf32>
  %d = payload.cast %c : tensor<32x32xf32> -> tensor<32x32xbf16>
  tile.store %d, %y[d0, d1] : tensor<32x32xbf16>, memref<32x32xbf16>
}

// -----

// A thread that is alone has dimensions that are reduced behind the one that is contiguous: a row is one piece.

// CHECK:       #layout = #tile.layout<reg = {{\[\[}}0, 0, 1], [0, 0, 2], [0, 0, 4], [1, 0, 0], [2, 0, 0], [0, 1, 0]], lane = [], warp = []>
// CHECK:       tile.kernel @alone
// CHECK-NEXT:    %v = tile.load {{.*}} -> tensor<4x2x8xf32, #layout>
tile.kernel @alone(%x: memref<4x2x8xf32>, %y: memref<2xf32>) blocks () in [] warps 1 lanes 1 {
  %v = tile.load %x[d0, d1, d2] : memref<4x2x8xf32> -> tensor<4x2x8xf32>
  %s = tile.reduce add %v over [0, 2] : tensor<4x2x8xf32> -> tensor<2xf32>
  tile.store %s, %y[d0] : tensor<2xf32>, memref<2xf32>
}

// -----

// Columns and the window over them are equally near in memory: the columns come first, which are longer.

// CHECK:       #layout = #tile.layout<reg = {{\[\[}}1, 0], [2, 0], [4, 0], [8, 0], [0, 1], [0, 2]], lane = [], warp = []>
// CHECK:       tile.kernel @window
// CHECK-NEXT:    %v = tile.load {{.*}} -> tensor<16x4xf32, #layout>
tile.kernel @window(%x: memref<19xf32>, %y: memref<16xf32>) blocks () in [] warps 1 lanes 1 {
  %v = tile.load %x[d0 + d1] : memref<19xf32> -> tensor<16x4xf32>
  %s = tile.reduce add %v over [1] : tensor<16x4xf32> -> tensor<16xf32>
  tile.store %s, %y[d0] : tensor<16xf32>, memref<16xf32>
}
