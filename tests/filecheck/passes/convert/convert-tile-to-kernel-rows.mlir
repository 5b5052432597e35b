// RUN: dl-opt %s --split-input-file --verify-diagnostics -p convert-tile-to-kernel,cse | filecheck %s

#row = #tile.layout<reg = [[1], [2]], lane = [[4], [8], [16], [32], [64]], warp = []>

// The places of a row are slots of one shared buffer, 16 bytes a thread at a time.

// CHECK-LABEL: kernel.func @row
// CHECK:         %r = kernel.shared : memref<512xbf16, "shared">
// CHECK:         %[[OFFSET:.*]] = arith.muli %k, %{{.*}} : index
// CHECK:         %[[SLOT:.*]] = kernel.subview %r[%[[OFFSET]]] : memref<512xbf16, "shared"> -> memref<128xbf16, "shared">
// CHECK-NEXT:    kernel.store %v, %[[SLOT]][%{{.*}}] regs {{\[\[}}1], [2]] vec 4
// CHECK:         %[[SLOT:.*]] = kernel.subview %r[%{{.*}}] : memref<512xbf16, "shared"> -> memref<128xbf16, "shared">
// CHECK-NEXT:    kernel.load %[[SLOT]][%{{.*}}] regs {{\[\[}}1], [2]] vec 4
tile.kernel @row(%x: memref<512xbf16>, %y: memref<512xbf16>) blocks () in [] warps 1 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = tile.row_buffer : !tile.row_buffer<4 of tensor<128xbf16>>
  scf.for %k = %c0 to %c4 step %c1 {
    %v = tile.load %x[d0 + %k * 128] : memref<512xbf16> -> tensor<128xbf16, #row>
    tile.row_buffer_store %v, %r[%k] : tensor<128xbf16, #row>, !tile.row_buffer<4 of tensor<128xbf16>>
  }
  scf.for %k = %c0 to %c4 step %c1 {
    %v = tile.row_buffer_load %r[%k] : !tile.row_buffer<4 of tensor<128xbf16>> -> tensor<128xbf16, #row>
    tile.store %v, %y[d0 + %k * 128] : tensor<128xbf16, #row>, memref<512xbf16>
  }
}

// -----

#each = #tile.layout<reg = [], lane = [[1], [2], [0], [0], [0]], warp = []>

// One thread puts what the block has into its memory; every thread then reads that of one block. All are put before any
// is read.

// CHECK-LABEL: kernel.func @peers
// CHECK:         %[[RANK:.*]] = arith.andi %thread, %{{.*}} : index
// CHECK:         kernel.store %{{.*}}, %a_shared[%{{.*}}] if %first
// CHECK-NEXT:    kernel.store %{{.*}}, %b_shared[%{{.*}}] if %first
// CHECK-NEXT:    %peer = kernel.mapa %a_shared of %[[RANK]]
// CHECK-NEXT:    %{{.*}} = kernel.load %peer[%{{.*}}]
// CHECK-NEXT:    %peer_1 = kernel.mapa %b_shared of %[[RANK]]
// CHECK-NEXT:    %{{.*}} = kernel.load %peer_1[%{{.*}}]
tile.kernel @peers(%x: memref<4xf32>, %y: memref<4xf32>) blocks (%r) in [4] warps 1 cluster 4 {
  %a = tile.load %x[%r] : memref<4xf32> -> f32
  %b = arith.mulf %a, %a : f32
  %as, %bs = tile.cluster_allgather %a, %b : f32, f32 -> tensor<4xf32, #each>, tensor<4xf32, #each>
  %c = arith.addf %as, %bs : tensor<4xf32, #each>
  %d = tile.reduce add %c over [0] : tensor<4xf32, #each> -> f32
  tile.store %d, %y[%r] : f32, memref<4xf32>
}

// -----

#held = #tile.layout<reg = [[1]], lane = [[2], [0], [0], [0], [0]], warp = []>

// CHECK: tile.cluster_allgather: a thread would hold what several blocks have; it reads from one
tile.kernel @several(%x: memref<4xf32>) blocks (%r) in [4] warps 1 cluster 4 {
  %a = tile.load %x[%r] : memref<4xf32> -> f32
  %as = tile.cluster_allgather %a : f32 -> tensor<4xf32, #held>
}

// -----

#sums = #tile.layout<reg = [[0, 1], [0, 2]], lane = [[0, 4], [1, 0], [2, 0], [4, 0], [8, 0]], warp = []>
#part = #tile.layout<reg = [], lane = [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0]], warp = []>

// Each block stages its sums. It loads its rows of all blocks, which start at 4 * 8 * rank, and adds them in one order.

// CHECK-LABEL: kernel.func @reduce_scatter
// CHECK:         %[[ROWS:.*]] = payload.constant 32 : index
// CHECK-NEXT:    %[[START:.*]] = arith.muli %rank, %[[ROWS]] : index
// CHECK-NEXT:    %[[AT:.*]] = arith.addi %thread, %[[START]] : index
// CHECK:         kernel.store %{{.*}}, %a_shared[
// CHECK:         %peer = kernel.mapa %a_shared of %{{.*}}
// CHECK-NEXT:    %peer_1 = kernel.mapa %a_shared of %{{.*}}
// CHECK-NEXT:    %peer_2 = kernel.mapa %a_shared of %{{.*}}
// CHECK-NEXT:    %peer_3 = kernel.mapa %a_shared of %{{.*}}
// CHECK-NEXT:    %[[A:.*]] = kernel.load %peer[%[[AT]]]
// CHECK-NEXT:    %[[B:.*]] = kernel.load %peer_1[%[[AT]]]
// CHECK-NEXT:    %[[C:.*]] = kernel.load %peer_2[%[[AT]]]
// CHECK-NEXT:    %[[D:.*]] = kernel.load %peer_3[%[[AT]]]
// CHECK-NEXT:    %[[AB:.*]] = arith.addf %[[A]], %[[B]]
// CHECK-NEXT:    %[[ABC:.*]] = arith.addf %[[AB]], %[[C]]
// CHECK-NEXT:    arith.addf %[[ABC]], %[[D]]
tile.kernel @reduce_scatter(%x: memref<4x16x8xf32>, %y: memref<16x8xf32>) blocks (%r) in [4] warps 1 cluster 4 {
  %a = tile.load %x[%r, d0, d1] : memref<4x16x8xf32> -> tensor<16x8xf32, #sums>
  %s = tile.cluster_reduce_scatter add %a along 0 : tensor<16x8xf32, #sums> -> tensor<4x8xf32, #part>
  tile.store %s, %y[d0 + %r * 4, d1] : tensor<4x8xf32, #part>, memref<16x8xf32>
}
