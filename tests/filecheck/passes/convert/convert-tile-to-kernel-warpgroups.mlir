// RUN: dl-opt %s --split-input-file -p tile-select-mma,dce,tile-assign-layouts,tile-stage-dot-operands | filecheck %s --check-prefix TILE
// RUN: dl-opt %s --split-input-file -p tile-select-mma,dce,tile-assign-layouts,tile-stage-dot-operands,tile-pipeline-dots,convert-tile-to-kernel,dce,kernel-allocate-shared,kernel-insert-barriers | filecheck %s

// A product of warpgroups: the left operand lies along k, the right one across, both in swizzled boxes. What threads
// store is ordered before what the product reads. Two warpgroups share 64 rows, so each has half of the columns.

// TILE:       #acc = #tile.layout<reg = {{\[\[}}0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = {{\[\[}}0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = {{\[\[}}16, 0], [32, 0], [0, 64]]>
// TILE:       #swz = #tile.shared<offset = {{\[\[}}0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>
// TILE:       #swz1 = #tile.shared<offset = {{.*}}, [32, 0], [0, 64]]>
// TILE:       tile.dot %a_shared, %b_shared, %zero atom "wgmma" : tensor<64x64xbf16, #swz>, tensor<64x128xbf16, #swz1>, tensor<64x128xf32, #acc

// CHECK-LABEL: kernel.func @product
// CHECK-SAME:    shared 24576
// CHECK:         kernel.store %a, %a_shared
// CHECK:         kernel.store %b, %b_shared
// CHECK:         [[START:%.*]] = kernel.accumulators : !kernel.async_accumulators<vector<32xf32>>
// CHECK-NEXT:    kernel.fence_async
// CHECK-NEXT:    kernel.barrier
// CHECK-NEXT:    kernel.wgmma_fence
// CHECK-NEXT:    %d = kernel.wgmma %a_shared[%{{.*}}], %b_shared[%{{.*}}] transposed into [[START]] k_steps 4 swizzle 128 scale_d_zero : memref<4096xbf16, "shared">, memref<8192xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
// CHECK-NEXT:    kernel.wgmma_commit
// CHECK-NEXT:    %d_1 = kernel.wgmma_wait 0, %d : !kernel.async_accumulators<vector<32xf32>> -> vector<32xf32>
tile.kernel @product(%x: memref<64x64xbf16>, %w: memref<64x128xbf16>, %y: memref<64x128xf32>) blocks () in [] warps 8
    attributes {schedule = #tile.schedule<block = [64, 128], chunk = [64], warps = 8, atom = wgmma>} {
  %zero = payload.constant 0.0 : tensor<64x128xf32>
  %a = tile.load %x[d0, d1] : memref<64x64xbf16> -> tensor<64x64xbf16>
  %b = tile.load %w[d0, d1] : memref<64x128xbf16> -> tensor<64x128xbf16>
  %af = payload.cast %a : tensor<64x64xbf16> -> tensor<64x64xf32>
  %bf = payload.cast %b : tensor<64x128xbf16> -> tensor<64x128xf32>
  %d = tile.dot %af, %bf, %zero : tensor<64x64xf32>, tensor<64x128xf32>, tensor<64x128xf32> -> tensor<64x128xf32>
  tile.store %d, %y[d0, d1] : tensor<64x128xf32>, memref<64x128xf32>
}

// -----

// Half a warpgroup's rows: a product for mma.sync.

// TILE: tile.dot {{.*}} atom "mma"
// CHECK-LABEL: kernel.func @small
// CHECK:         kernel.mma
tile.kernel @small(%x: memref<32x64xbf16>, %w: memref<64x128xbf16>, %y: memref<32x128xf32>) blocks () in [] warps 8
    attributes {schedule = #tile.schedule<block = [32, 128], chunk = [64], warps = 8, atom = wgmma>} {
  %zero = payload.constant 0.0 : tensor<32x128xf32>
  %a = tile.load %x[d0, d1] : memref<32x64xbf16> -> tensor<32x64xbf16>
  %b = tile.load %w[d0, d1] : memref<64x128xbf16> -> tensor<64x128xbf16>
  %af = payload.cast %a : tensor<32x64xbf16> -> tensor<32x64xf32>
  %bf = payload.cast %b : tensor<64x128xbf16> -> tensor<64x128xf32>
  %d = tile.dot %af, %bf, %zero : tensor<32x64xf32>, tensor<64x128xf32>, tensor<32x128xf32> -> tensor<32x128xf32>
  tile.store %d, %y[d0, d1] : tensor<32x128xf32>, memref<32x128xf32>
}
