// RUN: dl-opt %s -p tile-tma-epilogue --remarks | filecheck %s

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0], [64, 0]]>
#wide = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [16, 0], [32, 0]], lane = [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], warp = [[4, 0], [8, 0], [64, 0]]>

// CHECK: remark: [tile-tma-epilogue] tile.store: it is masked otherwise than by the end of its buffer
// CHECK: remark: [tile-tma-epilogue] tile.store: the rows of its buffer do not start at multiples of 16 bytes

// What ends where its buffer ends leaves as a box, in rows of 128 bytes that are swizzled.
// CHECK:       #swz = #tile.shared<offset = {{\[\[}}0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0], [64, 0]]>
// CHECK-LABEL: tile.kernel @box
// CHECK:         %o_1 = tile.stage %o : tensor<128x64xbf16, #layout> -> tensor<128x64xbf16, #swz>
// CHECK-NEXT:    tile.tma_store %o_1, %y[d0 + %i * 128, d1] : tensor<128x64xbf16, #swz>, memref<200x64xbf16>
// CHECK-NOT:     tile.store
tile.kernel @box(%a: memref<200x64xbf16>, %y: memref<200x64xbf16>) blocks (%i) in [2] warps 8
    attributes {schedule = #tile.schedule<block = [128, 64], warps = 8, copy = tma>} {
  %zero = payload.constant 0.0 : bf16
  %o = tile.load %a[d0 + %i * 128, d1]
    where 0 <= d0 + %i * 128 < 200 else %zero : memref<200x64xbf16> -> tensor<128x64xbf16, #acc>
  %w = tile.convert_layout %o : tensor<128x64xbf16, #acc> -> tensor<128x64xbf16, #wide>
  tile.store %w, %y[d0 + %i * 128, d1]
    where 0 <= d0 + %i * 128 < 200 : tensor<128x64xbf16, #wide>, memref<200x64xbf16>
}

// CHECK-LABEL: tile.kernel @masked
// CHECK:         tile.store %w, %y
// CHECK-LABEL: tile.kernel @pitch
// CHECK:         tile.store %w, %y
tile.kernel @masked(%a: memref<128x64xbf16>, %y: memref<128x64xbf16>) blocks () in [] warps 8
    attributes {schedule = #tile.schedule<block = [128, 64], warps = 8, copy = tma>} {
  %o = tile.load %a[d0, d1] : memref<128x64xbf16> -> tensor<128x64xbf16, #acc>
  %w = tile.convert_layout %o : tensor<128x64xbf16, #acc> -> tensor<128x64xbf16, #wide>
  tile.store %w, %y[d0, d1] where 0 <= d0 - d1 < 128
    : tensor<128x64xbf16, #wide>, memref<128x64xbf16>
}
tile.kernel @pitch(%a: memref<128x64xbf16>, %y: memref<128x68xbf16>) blocks () in [] warps 8
    attributes {schedule = #tile.schedule<block = [128, 64], warps = 8, copy = tma>} {
  %o = tile.load %a[d0, d1] : memref<128x64xbf16> -> tensor<128x64xbf16, #acc>
  %w = tile.convert_layout %o : tensor<128x64xbf16, #acc> -> tensor<128x64xbf16, #wide>
  tile.store %w, %y[d0, d1] : tensor<128x64xbf16, #wide>, memref<128x68xbf16>
}
