// RUN: %roundtrip

// CHECK:      %r = tile.row_buffer : !tile.row_buffer<13 of tensor<4096xf32>>
// CHECK-NEXT: tile.row_buffer_store %x, %r[%k] : tensor<4096xf32>, !tile.row_buffer<13 of tensor<4096xf32>>
// CHECK-NEXT: %y = tile.row_buffer_load %r[%k] : !tile.row_buffer<13 of tensor<4096xf32>> -> tensor<4096xf32>
%x, %k = "test.op"() : () -> (tensor<4096xf32>, index)
%r = tile.row_buffer : !tile.row_buffer<13 of tensor<4096xf32>>
tile.row_buffer_store %x, %r[%k] : tensor<4096xf32>, !tile.row_buffer<13 of tensor<4096xf32>>
%y = tile.row_buffer_load %r[%k] : !tile.row_buffer<13 of tensor<4096xf32>> -> tensor<4096xf32>

// CHECK:      %a, %b = tile.cluster_allgather %m, %t : f32, tensor<8xi64> -> tensor<4xf32>, tensor<4x8xi64>
%m, %t = "test.op"() : () -> (f32, tensor<8xi64>)
%a, %b = tile.cluster_allgather %m, %t : f32, tensor<8xi64> -> tensor<4xf32>, tensor<4x8xi64>

// CHECK:      %s = tile.cluster_reduce_scatter add %p along 0 : tensor<64x128xf32> -> tensor<16x128xf32>
%p = "test.op"() : () -> tensor<64x128xf32>
%s = tile.cluster_reduce_scatter add %p along 0 : tensor<64x128xf32> -> tensor<16x128xf32>
