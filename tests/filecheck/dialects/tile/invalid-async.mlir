// RUN: dl-opt %s --split-input-file --verify-diagnostics | filecheck %s

#layout = #tile.layout<reg = [[1], [2]], lane = [[4], [8], [16], [32], [64]], warp = []>

// CHECK: error: {{.*}}expected a result in shared memory, but got tensor<128xf32
tile.kernel @k(%a: memref<128xf32>) blocks () in [] warps 1 {
  %x = tile.stage_async %a[d0] by #layout : memref<128xf32> -> tensor<128xf32, #layout>
}

// -----

#shared = #tile.shared<offset = [[1], [2], [4], [8], [16], [32], [64]]>

// CHECK: error: {{.*}}expected a #tile.layout after `by`, but got #tile.shared
tile.kernel @k(%a: memref<128xf32>) blocks () in [] warps 1 {
  %x = tile.stage_async %a[d0] by #shared : memref<128xf32> -> tensor<128xf32, #shared>
}

// -----

#layout = #tile.layout<reg = [[1], [2]], lane = [[4], [8], [16], [32], [64]], warp = []>
#shared = #tile.shared<offset = [[1], [2], [4], [8], [16], [32], [64]]>

// CHECK: error: {{.*}}expected one element type of buffer and tile
tile.kernel @k(%a: memref<128xf32>) blocks () in [] warps 1 {
  %x = tile.stage_async %a[d0] by #layout : memref<128xf32> -> tensor<128xbf16, #shared>
}

// -----

// CHECK: error: {{.*}}expected tiles whose copies to shared memory are outstanding
tile.kernel @k(%a: memref<128xf32>) blocks () in [] warps 1 {
  %x = payload.constant 0.0 : tensor<128xf32>
  %y = tile.await %x pending 0 : tensor<128xf32>
}
