// RUN: dl-opt %s --split-input-file -p tile-defer-lane-sums | filecheck %s

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#row = #tile.layout<reg = [[8]], lane = [[0], [0], [1], [2], [4]], warp = [[16], [32]]>

// A lane has two columns of eight. They are rescaled as the row is, and summed once after the loop.
// CHECK-LABEL: tile.kernel @rescaled
// CHECK:         [[Z:%.*]] = payload.constant 0.000000e+00 : tensor<64x8xf32, #layout2>
// CHECK-NEXT:    [[T:%.*]] = scf.for %k = %c0 to %n step %c1 iter_args(%l = [[Z]]) -> (tensor<64x8xf32, #layout2>) {
// CHECK-NEXT:      [[A:%.*]] = tile.slice %e at [0, 0] : tensor<64x16xf32, #layout> -> tensor<64x8xf32, #layout2>
// CHECK-NEXT:      [[B:%.*]] = tile.slice %e at [0, 8] : tensor<64x16xf32, #layout> -> tensor<64x8xf32, #layout2>
// CHECK-NEXT:      [[F:%.*]] = tile.broadcast %f along [1] : tensor<64xf32, {{.*}}> -> tensor<64x8xf32, #layout2>
// CHECK-NEXT:      [[OLD:%.*]] = arith.mulf %l, [[F]] : tensor<64x8xf32, #layout2>
// CHECK-NEXT:      [[S:%.*]] = arith.addf [[A]], [[B]] : tensor<64x8xf32, #layout2>
// CHECK-NEXT:      [[NEW:%.*]] = arith.addf [[S]], [[OLD]] : tensor<64x8xf32, #layout2>
// CHECK-NEXT:      scf.yield [[NEW]]
// CHECK:         [[R:%.*]] = tile.reduce add [[T]] over [1] : tensor<64x8xf32, #layout2> -> tensor<64xf32, {{.*}}>
// CHECK-NEXT:    tile.store [[R]]
tile.kernel @rescaled(%z: memref<64xf32>) blocks (%n) in [4] warps 4 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %e, %f = "test.op"() : () -> (tensor<64x16xf32, #acc>, tensor<64xf32, #row>)
  %zero = payload.constant 0.0 : tensor<64xf32, #row>
  %s = scf.for %k = %c0 to %n step %c1 iter_args(%l = %zero) -> (tensor<64xf32, #row>) {
    %old = arith.mulf %l, %f : tensor<64xf32, #row>
    %sum = tile.reduce add %e over [1] : tensor<64x16xf32, #acc> -> tensor<64xf32, #row>
    %new = arith.addf %old, %sum : tensor<64xf32, #row>
    scf.yield %new : tensor<64xf32, #row>
  }
  tile.store %s, %z[d0] : tensor<64xf32, #row>, memref<64xf32>
}

// -----

#acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]>
#row = #tile.layout<reg = [[8]], lane = [[0], [0], [1], [2], [4]], warp = [[16], [32]]>

// A maximum does not add up from columns that are multiplied, and a sum that is used in the loop is needed there.
// CHECK-LABEL: tile.kernel @others
// CHECK:         scf.for
// CHECK:           tile.reduce max
// CHECK:           tile.reduce add
// CHECK-NOT:     tile.slice
tile.kernel @others(%z: memref<64xf32>) blocks (%n) in [4] warps 4 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %e = "test.op"() : () -> tensor<64x16xf32, #acc>
  %zero = payload.constant 0.0 : tensor<64xf32, #row>
  %s, %t = scf.for %k = %c0 to %n step %c1 iter_args(%l = %zero, %m = %zero) -> (tensor<64xf32, #row>, tensor<64xf32, #row>) {
    %top = tile.reduce max %e over [1] : tensor<64x16xf32, #acc> -> tensor<64xf32, #row>
    %a = arith.addf %l, %top : tensor<64xf32, #row>
    %sum = tile.reduce add %e over [1] : tensor<64x16xf32, #acc> -> tensor<64xf32, #row>
    %b = arith.addf %m, %sum : tensor<64xf32, #row>
    tile.store %b, %z[d0] : tensor<64xf32, #row>, memref<64xf32>
    scf.yield %a, %b : tensor<64xf32, #row>, tensor<64xf32, #row>
  }
  %u = arith.addf %s, %t : tensor<64xf32, #row>
  tile.store %u, %z[d0] : tensor<64xf32, #row>, memref<64xf32>
}
