// RUN: dl-opt %s -p tile-split-epilogue,dce --remarks | filecheck %s

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32], [0, 64]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0], [64, 0]]>
#column = #tile.layout<reg = [[1], [8], [16], [32], [64]], lane = [[2], [4], [0], [0], [0]], warp = [[0], [0], [0]]>
#wide = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [16, 0], [32, 0], [64, 0]], lane = [[0, 8], [0, 16], [0, 32], [0, 64], [1, 0]], warp = [[2, 0], [4, 0], [8, 0]]>

// The sums are taken part by part, by the registers that hold them; what is loaded beside them is loaded one part ahead;
// each warpgroup stores the rows that it holds.
// CHECK: remark: [tile-split-epilogue] tile.store: parts of 64 columns are not held by all threads
// CHECK-DAG:   #[[ACC:.*]] = #tile.layout<reg = {{\[\[}}0, 1], [8, 0], [0, 8], [0, 16], [0, 32], [0, 64]], lane
// CHECK-DAG:   #[[PART:.*]] = #tile.layout<reg = {{\[\[}}0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = {{\[\[}}0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = {{\[\[}}16, 0], [32, 0], [64, 0]]>
// CHECK-DAG:   #[[WIDE:.*]] = #tile.layout<reg = {{\[\[}}0, 1], [0, 2], [0, 4], [16, 0], [32, 0]], lane = {{\[\[}}0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = {{\[\[}}4, 0], [8, 0], [64, 0]]>
// CHECK-LABEL: tile.kernel @sums
// CHECK:         %r = tile.load %c[d0, d1] : memref<128x128xbf16> -> tensor<128x64xbf16, #[[WIDE]]>
// CHECK:         %b_1 = tile.load %b[d0] : memref<128xf32> -> tensor<64xf32
// CHECK:         %r_1 = tile.load %c[d0, d1 + 64] : memref<128x128xbf16> -> tensor<128x64xbf16, #[[WIDE]]>
// CHECK:         %b_2 = tile.load %b[d0 + 64] : memref<128xf32> -> tensor<64xf32
// CHECK:         %z_1 = tile.slice %z at [0, 0] : tensor<128x128xf32, #[[ACC]]> -> tensor<128x64xf32, #[[PART]]>
// CHECK:         tile.convert_layout %r : tensor<128x64xbf16, #[[WIDE]]> -> tensor<128x64xbf16, #[[PART]]>
// CHECK:         tile.broadcast %b_1 along [0]
// CHECK:         [[O:%.*]] = payload.cast {{.*}} : tensor<128x64xf32, #[[PART]]> -> tensor<128x64xbf16, #[[PART]]>
// CHECK-NEXT:    [[W:%.*]] = tile.convert_layout [[O]] : tensor<128x64xbf16, #[[PART]]> -> tensor<128x64xbf16, #[[WIDE]]>
// CHECK-NEXT:    tile.store [[W]], %y[d0, d1]
// CHECK:         tile.slice %z at [0, 64]
// CHECK:         tile.store {{.*}}, %y[d0, d1 + 64] : tensor<128x64xbf16, #[[WIDE]]>, memref<128x128xbf16>
// CHECK-NOT:     tensor<128x128xbf16
tile.kernel @sums(%a: memref<128x128xf32>, %c: memref<128x128xbf16>, %b: memref<128xf32>, %y: memref<128x128xbf16>)
    blocks () in [] warps 8 attributes {schedule = #tile.schedule<block = [128, 128], warps = 8, copy = tma>} {
  %c0 = payload.constant 0 : index
  %c1 = payload.constant 1 : index
  %zero = payload.constant 0.0 : tensor<128x128xf32, #acc>
  %z = scf.for %k = %c0 to %c1 step %c1 iter_args(%s = %zero) -> (tensor<128x128xf32, #acc>) {
    %x = tile.load %a[d0, d1] : memref<128x128xf32> -> tensor<128x128xf32, #acc>
    %t = arith.addf %s, %x : tensor<128x128xf32, #acc>
    scf.yield %t : tensor<128x128xf32, #acc>
  }
  %r = tile.load %c[d0, d1] : memref<128x128xbf16> -> tensor<128x128xbf16, #wide>
  %rc = tile.convert_layout %r : tensor<128x128xbf16, #wide> -> tensor<128x128xbf16, #acc>
  %rf = payload.cast %rc : tensor<128x128xbf16, #acc> -> tensor<128x128xf32, #acc>
  %b_1 = tile.load %b[d0] : memref<128xf32> -> tensor<128xf32, #column>
  %bias = tile.broadcast %b_1 along [0] : tensor<128xf32, #column> -> tensor<128x128xf32, #acc>
  %0 = arith.addf %z, %rf : tensor<128x128xf32, #acc>
  %1 = arith.addf %0, %bias : tensor<128x128xf32, #acc>
  %2 = payload.cast %1 : tensor<128x128xf32, #acc> -> tensor<128x128xbf16, #acc>
  %3 = tile.convert_layout %2 : tensor<128x128xbf16, #acc> -> tensor<128x128xbf16, #wide>
  tile.store %3, %y[d0, d1] : tensor<128x128xbf16, #wide>, memref<128x128xbf16>
}

#across = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0], [0, 64]]>
#rows = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [16, 0], [32, 0]], lane = [[0, 8], [0, 16], [0, 32], [0, 64], [1, 0]], warp = [[2, 0], [4, 0], [8, 0]]>

// Each warpgroup has half of the columns, so a part is not held by all threads.
// CHECK-LABEL: tile.kernel @columns
// CHECK:         tile.store {{.*}} : tensor<64x128xbf16
tile.kernel @columns(%a: memref<64x128xbf16>, %y: memref<64x128xbf16>) blocks () in [] warps 8
    attributes {schedule = #tile.schedule<block = [64, 128], warps = 8, copy = tma>} {
  %x = tile.load %a[d0, d1] : memref<64x128xbf16> -> tensor<64x128xbf16, #across>
  %3 = tile.convert_layout %x : tensor<64x128xbf16, #across> -> tensor<64x128xbf16, #rows>
  tile.store %3, %y[d0, d1] : tensor<64x128xbf16, #rows>, memref<64x128xbf16>
}
