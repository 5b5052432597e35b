// RUN: dl-opt %s -p tile-split-masked-loops --split-input-file --remarks | filecheck %s
// RUN: %check_each %s -p tile-split-masked-loops --split-input-file

// A ragged row: fifteen chunks lie inside of it, and their loads have no bounds either.
// CHECK:      %[[PART:[a-z0-9_]+]] = arith.constant 15 : index
// CHECK-NEXT: %[[HEAD:[a-z0-9_]+]] = scf.for %k = %c0 to %[[PART]] step %c1 iter_args(%a = %zero)
// CHECK-NEXT:   %v = tile.load %x[d0 + %k * 64] : memref<1000xf32> -> tensor<64xf32>
// CHECK-NEXT:   %n = arith.addf %a, %v
// CHECK:      %[[ALL:[a-z0-9_]+]] = scf.for %k_1 = %[[PART]] to %c16 step %c1 iter_args(%a_1 = %[[HEAD]])
// CHECK:        payload.cmp lt
// CHECK:        tile.load {{.*}} where
// CHECK:        payload.select
// CHECK:      tile.reduce add %[[ALL]]
tile.kernel @ragged(%x: memref<1000xf32>, %y: memref<1xf32>) blocks (%b) in [1] warps 1 {
  %zero = payload.constant 0.0 : tensor<64xf32>
  %pad = payload.constant 7.0 : f32
  %end = payload.constant 1000 : tensor<64xindex>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c16 = arith.constant 16 : index
  %s = scf.for %k = %c0 to %c16 step %c1 iter_args(%a = %zero) -> (tensor<64xf32>) {
    %i = tile.affine d0 + %k * 64 : tensor<64xindex>
    %c = payload.cmp lt %i, %end : tensor<64xindex>
    %v = tile.load %x[d0 + %k * 64]
        where 0 <= d0 + %k * 64 < 1000 else %pad : memref<1000xf32> -> tensor<64xf32>
    %t = payload.select %c, %v, %zero : tensor<64xf32>
    %n = arith.addf %a, %t : tensor<64xf32>
    scf.yield %n : tensor<64xf32>
  }
  %r = tile.reduce add %s over [0] : tensor<64xf32> -> f32
  tile.store %r, %y[%b] : f32, memref<1xf32>
}
func.func @main(%x: tensor<1000xf32>) -> tensor<1xf32> {
  %y = tile.launch @ragged(%x) : (tensor<1000xf32>) -> tensor<1xf32>
  func.return %y : tensor<1xf32>
}

// -----

// A window below the diagonal: masks where it begins and where it ends. Nothing is masked by `%all`.
// CHECK-LABEL: tile.kernel @window
// CHECK:       %first = arith.maxsi
// CHECK-NEXT:  %last
// CHECK:       %[[STOP:[a-z0-9_]+]] = arith.maxsi %b, %first : index
// CHECK-NEXT:  %[[NEAR:[a-z0-9_]+]] = tile.affine %b - 5 : index
// CHECK-NEXT:  %[[AFTER:[a-z0-9_]+]] = arith.maxsi %[[NEAR]], %first : index
// CHECK-NEXT:  %[[START:[a-z0-9_]+]] = arith.minsi %[[AFTER]], %[[STOP]] : index
// CHECK:       scf.for %k = %first to %[[START]]
// CHECK:         %near = payload.cmp
// CHECK-NOT:     payload.cmp
// CHECK:       scf.for %k_1 = %[[START]] to %[[STOP]]
// CHECK-NOT:     payload.cmp
// CHECK:       scf.for %k_2 = %[[STOP]] to %last
// CHECK:         %below = payload.cmp
// CHECK:         %near_1 = payload.cmp
// CHECK-NOT:     payload.cmp
// CHECK:       tile.store
tile.kernel @window(%y: memref<512xf32>) blocks (%b) in [32] warps 1 {
  %far = payload.constant 100 : tensor<16x16xindex>
  %most = payload.constant 512 : tensor<16x16xindex>
  %zeros = payload.constant 0.0 : tensor<16x16xf32>
  %ones = payload.constant 1.0 : tensor<16x16xf32>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %before = tile.affine %b - 7 : index
  %first = arith.maxsi %before, %c0 : index
  %last = tile.affine %b + 1 : index
  %row = tile.affine d0 + %b * 16 : tensor<16xindex>
  %i = tile.broadcast %row along [1] : tensor<16xindex> -> tensor<16x16xindex>
  %s = scf.for %k = %first to %last step %c1 iter_args(%a = %zeros) -> (tensor<16x16xf32>) {
    %j = tile.affine d1 + %k * 16 : tensor<16x16xindex>
    %below = payload.cmp le %j, %i : tensor<16x16xindex>
    %d = arith.subi %i, %j : tensor<16x16xindex>
    %near = payload.cmp lt %d, %far : tensor<16x16xindex>
    %all = payload.cmp lt %j, %most : tensor<16x16xindex>
    %both = arith.andi %below, %near : tensor<16x16xi1>
    %seen = arith.andi %both, %all : tensor<16x16xi1>
    %t = payload.select %seen, %ones, %zeros : tensor<16x16xf32>
    %n = arith.addf %a, %t : tensor<16x16xf32>
    scf.yield %n : tensor<16x16xf32>
  }
  %r = tile.reduce add %s over [1] : tensor<16x16xf32> -> tensor<16xf32>
  tile.store %r, %y[d0 + %b * 16] : tensor<16xf32>, memref<512xf32>
}
func.func @main() -> tensor<512xf32> {
  %y = tile.launch @window() : () -> tensor<512xf32>
  func.return %y : tensor<512xf32>
}

// -----

// One of three chunks is whole: that is not worth a loop. What depends on data has no answer anyway.
// CHECK:       remark: [tile-split-masked-loops] payload.cmp: too few iterations are without it for a loop of their own
// CHECK-LABEL: tile.kernel @few
// CHECK:       scf.for
// CHECK-COUNT-2: payload.cmp
// CHECK-NOT:   scf.for
tile.kernel @few(%x: memref<4x4xindex>, %y: memref<8x4xf32>) blocks (%b) in [2] warps 1 {
  %zero = payload.constant 0.0 : tensor<4x4xf32>
  %one = payload.constant 1.0 : tensor<4x4xf32>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %last = tile.affine %b + 1 : index
  %row = tile.affine d0 + %b * 4 : tensor<4x4xindex>
  %v = tile.load %x[d0, d1] : memref<4x4xindex> -> tensor<4x4xindex>
  %s = scf.for %k = %c0 to %last step %c1 iter_args(%a = %zero) -> (tensor<4x4xf32>) {
    %j = tile.affine %k * 4 + d1 : tensor<4x4xindex>
    %below = payload.cmp le %j, %row : tensor<4x4xindex>
    %t = payload.select %below, %one, %zero : tensor<4x4xf32>
    %data = payload.cmp le %j, %v : tensor<4x4xindex>
    %u = payload.select %data, %t, %zero : tensor<4x4xf32>
    %n = arith.addf %a, %u : tensor<4x4xf32>
    scf.yield %n : tensor<4x4xf32>
  }
  tile.store %s, %y[d0 + %b * 4, d1] : tensor<4x4xf32>, memref<8x4xf32>
}
func.func @main(%x: tensor<4x4xindex>) -> tensor<8x4xf32> {
  %y = tile.launch @few(%x) : (tensor<4x4xindex>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}

// -----

// Of a persistent kernel: 132 blocks share 2048 tiles, 32 rows of tiles of 64 batches. On average most chunks of a row lie
// below the diagonal, however the numbers of the tiles are taken apart.
// CHECK-LABEL: tile.kernel @persistent
// CHECK:       scf.for %tile = %block to %c2048 step %c132
// CHECK:         %[[MASKED:[a-z0-9_]+]] = scf.for %k = %c0 to %[[PART:[a-z0-9_]+]] step %c1
// CHECK-NOT:       payload.cmp
// CHECK:         scf.for %k_1 = %[[PART]] to %last step %c1
// CHECK:           payload.cmp le
tile.kernel @persistent(%y: memref<64x512xf32>) blocks (%block) in [132] warps 1 {
  %zeros = payload.constant 0.0 : tensor<16x16xf32>
  %ones = payload.constant 1.0 : tensor<16x16xf32>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c132 = arith.constant 132 : index
  %c2048 = arith.constant 2048 : index
  scf.for %tile = %block to %c2048 step %c132 {
    %batch = tile.affine %tile floordiv 32 : index
    %b = tile.affine %tile mod 32 : index
    %last = tile.affine %b + 1 : index
    %row = tile.affine d0 + %b * 16 : tensor<16xindex>
    %i = tile.broadcast %row along [1] : tensor<16xindex> -> tensor<16x16xindex>
    %s = scf.for %k = %c0 to %last step %c1 iter_args(%a = %zeros) -> (tensor<16x16xf32>) {
      %j = tile.affine d1 + %k * 16 : tensor<16x16xindex>
      %below = payload.cmp le %j, %i : tensor<16x16xindex>
      %t = payload.select %below, %ones, %zeros : tensor<16x16xf32>
      %n = arith.addf %a, %t : tensor<16x16xf32>
      scf.yield %n : tensor<16x16xf32>
    }
    %r = tile.reduce add %s over [1] : tensor<16x16xf32> -> tensor<16xf32>
    tile.store %r, %y[%batch, d0 + %b * 16] : tensor<16xf32>, memref<64x512xf32>
  }
}
func.func @main() -> tensor<64x512xf32> {
  %y = tile.launch @persistent() : () -> tensor<64x512xf32>
  func.return %y : tensor<64x512xf32>
}
