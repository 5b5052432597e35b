// RUN: dl-opt %s -p tile-swizzle-grid --split-input-file --remarks --verify-diagnostics | filecheck %s

// Four tiles down come first, then the next column of tiles.

// CHECK:      tile.kernel @k0({{.*}}) blocks (%b, %i, %j, %group) in [3, 2, 5, 4]
// CHECK-NEXT:   %i_1 = tile.affine %i * 4 + %group : index
// CHECK-NEXT:   %v = tile.load %x[%b, %i_1, %j]
// CHECK-NEXT:   tile.store %v, %y[%b, %i_1, %j]
tile.kernel @k0(%x: memref<3x8x5xf32>, %y: memref<3x8x5xf32>) blocks (%b, %i, %j) in [3, 8, 5] warps 1
    attributes {schedule = #tile.schedule<block = [1, 1, 1], warps = 1, group_m = 4>} {
  %v = tile.load %x[%b, %i, %j] : memref<3x8x5xf32> -> f32
  tile.store %v, %y[%b, %i, %j] : f32, memref<3x8x5xf32>
}

// -----

// CHECK: remark: [tile-swizzle-grid] tile.kernel: group_m = 4 does not divide 6 row tiles
// CHECK: tile.kernel @odd({{.*}}) blocks (%i, %j) in [6, 5]
tile.kernel @odd(%y: memref<6x5xf32>) blocks (%i, %j) in [6, 5] warps 1
    attributes {schedule = #tile.schedule<block = [1, 1], warps = 1, group_m = 4>} {
  %v = payload.constant 1.0 : f32
  tile.store %v, %y[%i, %j] : f32, memref<6x5xf32>
}

// -----

// CHECK: remark: [tile-swizzle-grid] tile.kernel: expected a grid of at least 2 indices, but got 1
tile.kernel @line(%y: memref<8xf32>) blocks (%i) in [8] warps 1
    attributes {schedule = #tile.schedule<block = [1], warps = 1, group_m = 4>} {
  %v = payload.constant 1.0 : f32
  tile.store %v, %y[%i] : f32, memref<8xf32>
}

// -----

#s0 = #payload.symbol<s0[1:1001]>
// CHECK: remark: [tile-swizzle-grid] tile.kernel: the number of tiles is known only at run time
tile.kernel @dynamic(%y: memref<?x8xf32, #payload.extents<#s0, 8>>) blocks (%i, %j) in [#s0 / 1, 8] warps 1
    attributes {schedule = #tile.schedule<block = [1, 1], warps = 1, group_m = 4>} {
  %v = payload.constant 1.0 : f32
  tile.store %v, %y[%i, %j] : f32, memref<?x8xf32, #payload.extents<#s0, 8>>
}
