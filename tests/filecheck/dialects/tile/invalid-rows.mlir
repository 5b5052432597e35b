// RUN: %diagnostics

// CHECK: expected at least one place, but got 0
%r = "test.op"() : () -> (!tile.row_buffer<0 of tensor<8xf32>>)

// -----

// CHECK: expected a row of tiles without a layout, but got f32
%r = "test.op"() : () -> (!tile.row_buffer<2 of f32>)

// -----

#a = #tile.shared<offset = [[1], [2], [4]]>
// CHECK: expected a row of tiles without a layout, but got tensor<8xf32, #tile.shared
%r = "test.op"() : () -> (!tile.row_buffer<2 of tensor<8xf32, #a>>)

// -----

%x, %k, %r = "test.op"() : () -> (tensor<4xf32>, index, !tile.row_buffer<2 of tensor<8xf32>>)
// CHECK: tile.row_buffer_store: expected a tile of !tile.row_buffer<2 of tensor<8xf32>>, but got tensor<4xf32>
tile.row_buffer_store %x, %r[%k] : tensor<4xf32>, !tile.row_buffer<2 of tensor<8xf32>>

// -----

%k, %r = "test.op"() : () -> (index, !tile.row_buffer<2 of tensor<8xf32>>)
// CHECK: tile.row_buffer_load: expected a tile of !tile.row_buffer<2 of tensor<8xf32>>, but got tensor<8xbf16>
%x = tile.row_buffer_load %r[%k] : !tile.row_buffer<2 of tensor<8xf32>> -> tensor<8xbf16>

// -----

%m = "test.op"() : () -> f32
// CHECK: tile.cluster_allgather: expected at least one tile and as many results, but got 1 and 2
%a, %b = tile.cluster_allgather %m : f32 -> tensor<4xf32>, tensor<4xf32>

// -----

%m, %t = "test.op"() : () -> (f32, tensor<8xf32>)
// CHECK: tile.cluster_allgather: expected tensor<8xf32> with a new first dimension of 4 ranks, but got tensor<2x8xf32>
%a, %b = tile.cluster_allgather %m, %t : f32, tensor<8xf32> -> tensor<4xf32>, tensor<2x8xf32>

// -----

%m = "test.op"() : () -> f32
// CHECK: tile.cluster_allgather: expected f32 with a new first dimension of 4 ranks, but got tensor<4xbf16>
%a = tile.cluster_allgather %m : f32 -> tensor<4xbf16>

// -----

// CHECK: tile.cluster_allgather: expected tiles of the 2 blocks of a cluster of the kernel, but got 4
tile.kernel @k(%x: memref<8xf32>) blocks (%r) in [2] warps 1 cluster 2 {
  %m = payload.constant 1.0 : f32
  %a = tile.cluster_allgather %m : f32 -> tensor<4xf32>
}

// -----

%p = "test.op"() : () -> tensor<64x128xf32>
// CHECK: tile.cluster_reduce_scatter: expected a dimension of tensor<64x128xf32>, but got 2
%s = tile.cluster_reduce_scatter add %p along 2 : tensor<64x128xf32> -> tensor<16x128xf32>

// -----

%p = "test.op"() : () -> tensor<64x128xf32>
// CHECK: tile.cluster_reduce_scatter: expected an equal part of tensor<64x128xf32> along dimension 0, but got tensor<16x64xf32>
%s = tile.cluster_reduce_scatter add %p along 0 : tensor<64x128xf32> -> tensor<16x64xf32>

// -----

%p = "test.op"() : () -> tensor<64x128xf32>
// CHECK: tile.cluster_reduce_scatter: expected an equal part of tensor<64x128xf32> along dimension 0, but got tensor<48x128xf32>
%s = tile.cluster_reduce_scatter add %p along 0 : tensor<64x128xf32> -> tensor<48x128xf32>

// -----

%p = "test.op"() : () -> tensor<64x128xf32>
// CHECK: tile.cluster_reduce_scatter: expected an equal part of tensor<64x128xf32> along dimension 0, but got tensor<16x128xbf16>
%s = tile.cluster_reduce_scatter add %p along 0 : tensor<64x128xf32> -> tensor<16x128xbf16>

// -----

// CHECK: tile.cluster_reduce_scatter: expected tiles of the 2 blocks of a cluster of the kernel, but got 4
tile.kernel @k(%x: memref<8xf32>) blocks (%r) in [2] warps 1 cluster 2 {
  %m = payload.constant 1.0 : tensor<8xf32>
  %a = tile.cluster_reduce_scatter add %m along 0 : tensor<8xf32> -> tensor<2xf32>
}
