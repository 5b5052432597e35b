// RUN: dl-opt %s | dl-opt | filecheck %s

#layout = #tile.layout<reg = [[0, 1], [0, 2]], lane = [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], warp = []>
#shared = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0]]>

// CHECK-LABEL: @copies
// CHECK:         %x = tile.stage_async %a[d0, d1 + %i] where 0 <= d1 < 12 if %p by #layout : memref<8x256xf32> -> tensor<8x16xf32, #shared>
// CHECK-NEXT:    %y = tile.stage_async %a[d0, d1] by #layout : memref<8x256xf32> -> tensor<8x16xf32, #shared>
// CHECK-NEXT:    tile.commit
// CHECK-NEXT:    %u, %v = tile.await %x, %y pending 2 : tensor<8x16xf32, #shared>, tensor<8x16xf32, #shared>
tile.kernel @copies(%a: memref<8x256xf32>) blocks (%i) in [3] warps 1 {
  %p = payload.constant 1 : i1
  %x = tile.stage_async %a[d0, d1 + %i]
       where 0 <= d1 < 12 if %p by #layout
       : memref<8x256xf32> -> tensor<8x16xf32, #shared>
  %y = tile.stage_async %a[d0, d1] by #layout : memref<8x256xf32> -> tensor<8x16xf32, #shared>
  tile.commit
  %u, %v = tile.await %x, %y pending 2 : tensor<8x16xf32, #shared>, tensor<8x16xf32, #shared>
}
