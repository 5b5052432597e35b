// RUN: dl-opt %s -p tile-persistent-blocks --split-input-file --remarks --verify-diagnostics | filecheck %s

// Four blocks walk through forty tiles.

// CHECK:      tile.kernel @k0({{.*}}) blocks (%block) in [4]
// CHECK-NEXT:   %0 = arith.constant 40 : index
// CHECK-NEXT:   %1 = arith.constant 4 : index
// CHECK-NEXT:   scf.for %tile = %block to %0 step %1 {
// CHECK-NEXT:     %i = tile.affine %tile floordiv 5 : index
// CHECK-NEXT:     %j = tile.affine %tile mod 5 : index
// CHECK-NEXT:     %v = tile.load %x[%i, %j]
// CHECK-NEXT:     tile.store %v, %y[%i, %j]
// CHECK-NEXT:   }
tile.kernel @k0(%x: memref<8x5xf32>, %y: memref<8x5xf32>) blocks (%i, %j) in [8, 5] warps 1
    attributes {schedule = #tile.schedule<block = [1, 1], warps = 1, num_ctas = 4>} {
  %v = tile.load %x[%i, %j] : memref<8x5xf32> -> f32
  tile.store %v, %y[%i, %j] : f32, memref<8x5xf32>
}

// -----

// CHECK: remark: [tile-persistent-blocks] tile.kernel: there are only 40 tiles
tile.kernel @few(%y: memref<8x5xf32>) blocks (%i, %j) in [8, 5] warps 1
    attributes {schedule = #tile.schedule<block = [1, 1], warps = 1, num_ctas = 40>} {
  %v = payload.constant 1.0 : f32
  tile.store %v, %y[%i, %j] : f32, memref<8x5xf32>
}

// -----

#s0 = #payload.symbol<s0[1:1001]>
// CHECK: remark: [tile-persistent-blocks] tile.kernel: the number of tiles is known only at run time
tile.kernel @dynamic(%y: memref<?xf32, #payload.extents<#s0>>) blocks (%i) in [#s0 / 1] warps 1
    attributes {schedule = #tile.schedule<block = [1], warps = 1, num_ctas = 4>} {
  %v = payload.constant 1.0 : f32
  tile.store %v, %y[%i] : f32, memref<?xf32, #payload.extents<#s0>>
}
