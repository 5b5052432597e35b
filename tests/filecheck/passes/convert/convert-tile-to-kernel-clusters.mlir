// RUN: dl-opt %s -p tile-pipeline-dots,convert-tile-to-kernel | filecheck %s

// A ring that two blocks fill together: everybody waits for both to be set up, each block loads half of the rows of the
// shared tile for both, and a slot is free when the consumers of both have said so, an
// iteration later; no block ends before the other.

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [0, 32]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], [16, 0], [32, 0]]>

// CHECK-LABEL: kernel.func @product
// CHECK-SAME:    grid [32] warps 8 cluster 2
// CHECK-DAG:     [[RANK:%rank]] = kernel.id rank
// CHECK-DAG:     [[HALF:%.*]] = arith.muli %rank, %{{.*}} : index
// CHECK-DAG:     %x_map = kernel.tensor_map %x : memref<256x512xbf16> -> !kernel.tensor_map<32x64xbf16, swizzle 128>
// CHECK-DAG:     %w_map = kernel.tensor_map %w : memref<512x512xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
// CHECK:         kernel.mbar_init %full{{.*}} arrivals 1
// CHECK-NEXT:    kernel.mbar_init %empty{{.*}} arrivals 2
// CHECK:         kernel.fence_mbar_init
// CHECK:         kernel.cluster_barrier
// CHECK-NEXT:    kernel.warp_specialize {
// CHECK:           %elected = payload.cmp lt [[THREAD:%.*]], %{{.*}} : index
// CHECK-NEXT:      %free = arith.andi %elected, %more : i1
// CHECK-NEXT:      scf.if %free {
// CHECK-NEXT:        kernel.mbar_arrive %empty[%last{{.*}}] of [[THREAD]] async
// CHECK:         partition "producer"
// CHECK:           kernel.mbar_expect %full{{.*}} bytes 16384
// CHECK:           kernel.tma_load %x_map[{{.*}}] to %ring{{.*}} multicast [0, 1]
// CHECK:           kernel.tma_load %w_map[{{.*}}] to %ring{{.*}}] :
// CHECK:         kernel.cluster_barrier
// CHECK-NEXT:  }
tile.kernel @product(%x: memref<256x512xbf16>, %w: memref<512x512xbf16>, %y: memref<256x512xf32>) blocks (%i, %j) in [4, 8] warps 4 cluster 2 {
  %ring = tile.ring : !tile.ring<3 of tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>>
  tile.warp_specialize {
    %zero = payload.constant 0.0 : tensor<64x64xf32, #acc>
    %c0 = payload.constant 0 : index
    %c1 = payload.constant 1 : index
    %c8 = payload.constant 8 : index
    %s = scf.for %k = %c0 to %c8 step %c1 iter_args(%acc = %zero) -> (tensor<64x64xf32, #acc>) {
      %a, %c = tile.consumer_wait %ring : !tile.ring<3 of tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>>
      %n = tile.dot %a, %c, %acc atom "wgmma"
        : tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>, tensor<64x64xf32, #acc> -> tensor<64x64xf32, #acc>
      tile.consumer_release %ring : !tile.ring<3 of tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>>
      scf.yield %n : tensor<64x64xf32, #acc>
    }
    tile.store %s, %y[d0 + %i * 64, d1 + %j * 64] : tensor<64x64xf32, #acc>, memref<256x512xf32>
  } producer warps 4 {
    %d0 = payload.constant 0 : index
    %d1 = payload.constant 1 : index
    %d8 = payload.constant 8 : index
    scf.for %k = %d0 to %d8 step %d1 {
      %a = tile.tma_load %x[d0 + %i * 64, d1 + %k * 64] multicast : memref<256x512xbf16> -> tensor<64x64xbf16, #b>
      %c = tile.tma_load %w[d0 + %j * 64, d1 + %k * 64] : memref<512x512xbf16> -> tensor<64x64xbf16, #b>
      tile.producer_load %ring, %a, %c : !tile.ring<3 of tensor<64x64xbf16, #b>, tensor<64x64xbf16, #b>>
    }
  }
}
