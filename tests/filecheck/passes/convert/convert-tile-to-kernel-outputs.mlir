// RUN: dl-opt %s --split-input-file -p convert-tile-to-kernel,cse,dce --verify-diagnostics | filecheck %s

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32], [0, 64]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0], [64, 0]]>
#part = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0], [64, 0]]>
#box = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0], [64, 0]]>

// Two buffers take turns; each warpgroup fills its half of one by matrices and sends it off, a part is its registers.
// CHECK-LABEL: kernel.func @parts
// CHECK-DAG:     %p_shared = kernel.shared warp_group_private 4 : memref<8192xbf16, "shared">
// CHECK-DAG:     %q_shared = kernel.shared warp_group_private 4 : memref<8192xbf16, "shared">
// CHECK-DAG:     %y_map = kernel.tensor_map %y : memref<128x128xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
// CHECK:         [[X:%.*]] = kernel.load %x
// CHECK:         [[P:%.*]] = kernel.shuffle_registers [[X]] from [0, 1, 2, {{.*}} 30, 31] : vector<64xbf16> -> vector<32xbf16>
// CHECK:         kernel.stmatrix count 4 [[P]], %p_shared[%{{.*}}] xor steps [16, 32] : vector<32xbf16>
// CHECK:         [[E:%.*]] = payload.cmp eq %{{.*}}, %{{.*}} : index
// CHECK:         scf.if [[E]] {
// CHECK-NEXT:      kernel.tma_store %p_shared[%{{.*}}] to %y_map
// CHECK-NEXT:      kernel.bulk_commit
// CHECK-NEXT:    }
// CHECK:         [[Q:%.*]] = kernel.shuffle_registers [[X]] from [32, 33, 34, {{.*}} 62, 63] : vector<64xbf16> -> vector<32xbf16>
// CHECK:         kernel.stmatrix count 4 [[Q]], %q_shared
// CHECK:           kernel.tma_store %q_shared
tile.kernel @parts(%x: memref<128x128xbf16>, %y: memref<128x128xbf16>) blocks () in [] warps 8 {
  %a = tile.load %x[d0, d1] : memref<128x128xbf16> -> tensor<128x128xbf16, #acc>
  %p = tile.slice %a at [0, 0] : tensor<128x128xbf16, #acc> -> tensor<128x64xbf16, #part>
  %0 = tile.stage %p : tensor<128x64xbf16, #part> -> tensor<128x64xbf16, #box>
  tile.tma_store %0, %y[d0, d1] : tensor<128x64xbf16, #box>, memref<128x128xbf16>
  %q = tile.slice %a at [0, 64] : tensor<128x128xbf16, #acc> -> tensor<128x64xbf16, #part>
  %1 = tile.stage %q : tensor<128x64xbf16, #part> -> tensor<128x64xbf16, #box>
  tile.tma_store %1, %y[d0, d1 + 64] : tensor<128x64xbf16, #box>, memref<128x128xbf16>
}

// -----

#part = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0], [64, 0]]>
#rows = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 0], [2, 0], [4, 0], [8, 0], [16, 0], [32, 0], [64, 0]]>

// CHECK: error: tile.tma_store: expected a 2-D tile with a TMA layout
tile.kernel @no_boxes(%x: memref<128x64xbf16>, %y: memref<128x64xbf16>) blocks () in [] warps 8 {
  %a = tile.load %x[d0, d1] : memref<128x64xbf16> -> tensor<128x64xbf16, #part>
  %0 = tile.stage %a : tensor<128x64xbf16, #part> -> tensor<128x64xbf16, #rows>
  tile.tma_store %0, %y[d0, d1] : tensor<128x64xbf16, #rows>, memref<128x64xbf16>
}
