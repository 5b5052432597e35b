// RUN: dl-opt %s --split-input-file --remarks -p tile-recognize-contractions | filecheck %s

// The right factor is loaded the other way round; the addition becomes the accumulator; the product is gone.

// CHECK-LABEL: tile.kernel @product
// CHECK-NEXT:    %[[Z:.*]] = payload.constant 0.000000e+00 : f32
// CHECK-NEXT:    %a = tile.load %x[affine_map<(d0, d1) -> (d0, d1)>]() : memref<8x4xf32> -> tensor<8x4xf32>
// CHECK-NEXT:    %b = tile.load %w[affine_map<(d0, d1) -> (d1, d0)>]() where <affine_map<(d0, d1) -> (d0)> in [0:3]> else %[[Z]] : memref<16x3xf32> -> tensor<4x16xf32>
// CHECK-NEXT:    %b2 = arith.negf %b : tensor<4x16xf32>
// CHECK-NEXT:    %acc = tile.load
// CHECK-NEXT:    %[[N:.*]] = tile.dot %a, %b2, %acc : tensor<8x4xf32>, tensor<4x16xf32>, tensor<8x16xf32> -> tensor<8x16xf32>
// CHECK-NEXT:    tile.store %[[N]]
tile.kernel @product(%x: memref<8x4xf32>, %w: memref<16x3xf32>, %c: memref<8x16xf32>, %y: memref<8x16xf32>) blocks () in [] warps 1 {
  %z = payload.constant 0.0 : f32
  %a = tile.load %x[affine_map<(d0, d1) -> (d0, d1)>]() : memref<8x4xf32> -> tensor<8x4xf32>
  %b = tile.load %w[affine_map<(d0, d1) -> (d0, d1)>]() where <affine_map<(d0, d1) -> (d1)> in [0:3]> else %z : memref<16x3xf32> -> tensor<16x4xf32>
  %b2 = arith.negf %b : tensor<16x4xf32>
  %acc = tile.load %c[affine_map<(d0, d1) -> (d0, d1)>]() : memref<8x16xf32> -> tensor<8x16xf32>
  %a3 = tile.broadcast %a along [1] : tensor<8x4xf32> -> tensor<8x16x4xf32>
  %b3 = tile.broadcast %b2 along [0] : tensor<16x4xf32> -> tensor<8x16x4xf32>
  %p = arith.mulf %b3, %a3 : tensor<8x16x4xf32>
  %s = tile.reduce add %p over [2] : tensor<8x16x4xf32> -> tensor<8x16xf32>
  %n = arith.addf %s, %acc : tensor<8x16xf32>
  tile.store %n, %y[affine_map<(d0, d1) -> (d0, d1)>]() : tensor<8x16xf32>, memref<8x16xf32>
}

// -----

// A sum that is used twice starts from zero.

// CHECK-LABEL: tile.kernel @twice
// CHECK:         %[[ZERO:.*]] = payload.constant 0.000000e+00 : tensor<8x8xf32>
// CHECK-NEXT:    %s = tile.dot %a, %{{.*}}, %[[ZERO]]
// CHECK-NEXT:    arith.addf %s, %s
tile.kernel @twice(%x: memref<8x4xf32>, %y: memref<8x8xf32>) blocks () in [] warps 1 {
  %a = tile.load %x[affine_map<(d0, d1) -> (d0, d1)>]() : memref<8x4xf32> -> tensor<8x4xf32>
  %a3 = tile.broadcast %a along [1] : tensor<8x4xf32> -> tensor<8x8x4xf32>
  %b3 = tile.broadcast %a along [0] : tensor<8x4xf32> -> tensor<8x8x4xf32>
  %p = arith.mulf %a3, %b3 : tensor<8x8x4xf32>
  %s = tile.reduce add %p over [2] : tensor<8x8x4xf32> -> tensor<8x8xf32>
  %n = arith.addf %s, %s : tensor<8x8xf32>
  tile.store %n, %y[affine_map<(d0, d1) -> (d0, d1)>]() : tensor<8x8xf32>, memref<8x8xf32>
}

// -----

// One factor depends on everything, or the kind is another one: left alone, with a remark where it looked like a product.

// CHECK:       remark: [tile-recognize-contractions] tile.reduce: a factor depends on the rows and on the columns of the result
// CHECK-LABEL: tile.kernel @declined
// CHECK:         tile.reduce add
// CHECK:         tile.reduce max
// CHECK-NOT:     tile.dot
tile.kernel @declined(%x: memref<8x8x4xf32>, %w: memref<8x4xf32>, %y: memref<8x8xf32>, %z: memref<8x8xf32>) blocks () in [] warps 1 {
  %a = tile.load %x[affine_map<(d0, d1, d2) -> (d0, d1, d2)>]() : memref<8x8x4xf32> -> tensor<8x8x4xf32>
  %b = tile.load %w[affine_map<(d0, d1) -> (d0, d1)>]() : memref<8x4xf32> -> tensor<8x4xf32>
  %b3 = tile.broadcast %b along [0] : tensor<8x4xf32> -> tensor<8x8x4xf32>
  %p = arith.mulf %a, %b3 : tensor<8x8x4xf32>
  %s = tile.reduce add %p over [2] : tensor<8x8x4xf32> -> tensor<8x8xf32>
  %m = tile.reduce max %p over [2] : tensor<8x8x4xf32> -> tensor<8x8xf32>
  tile.store %s, %y[affine_map<(d0, d1) -> (d0, d1)>]() : tensor<8x8xf32>, memref<8x8xf32>
  tile.store %m, %z[affine_map<(d0, d1) -> (d0, d1)>]() : tensor<8x8xf32>, memref<8x8xf32>
}
