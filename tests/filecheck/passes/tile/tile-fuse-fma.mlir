// RUN: dl-opt %s --split-input-file -p tile-fuse-fma | filecheck %s

// The factor and the shift of a row are computed once. Where the shift would be rounded by much, the factor is a power
// of two. One product without the flag stays, as does one whose difference is not with a row, and one of a factor that
// may overflow.
// CHECK-LABEL: tile.kernel @rows
// CHECK:         tile.broadcast %m along [1]
// CHECK-NEXT:    [[C:%.*]] = payload.constant 1.44269502 : tensor<64xf32>
// CHECK-NEXT:    [[P:%.*]] = payload.constant 1.000000e+00 : tensor<64xf32>
// CHECK-NEXT:    [[R:%.*]] = arith.mulf %m, [[C]] : tensor<64xf32>
// CHECK-NEXT:    [[L:%.*]] = payload.constant 0x4D800000 : tensor<64xf32>
// CHECK-NEXT:    [[A:%.*]] = math.absf [[R]] : tensor<64xf32>
// CHECK-NEXT:    [[S:%.*]] = payload.cmp lt [[A]], [[L]] : tensor<64xf32>
// CHECK-NEXT:    [[F:%.*]] = payload.select [[S]], [[C]], [[P]] : tensor<64xf32>
// CHECK-NEXT:    [[T:%.*]] = arith.mulf %m, [[F]] : tensor<64xf32>
// CHECK-NEXT:    [[N:%.*]] = arith.negf [[T]] : tensor<64xf32>
// CHECK-NEXT:    [[FB:%.*]] = tile.broadcast [[F]] along [1]
// CHECK-NEXT:    [[NB:%.*]] = tile.broadcast [[N]] along [1]
// CHECK:         [[Y:%.*]] = math.fma %x, [[FB]], [[NB]] : tensor<64x32xf32>
// CHECK:         %strict = arith.mulf %d, %c : tensor<64x32xf32>
// CHECK:         %large = arith.mulf %d, %two fastmath<contract> : tensor<64x32xf32>
// CHECK:         %elements = arith.mulf %e, %c fastmath<contract> : tensor<64x32xf32>
tile.kernel @rows(%z: memref<64x32xf32>, %r: memref<64xf32>) blocks () in [] warps 4 {
  %x = tile.load %z[d0, d1] : memref<64x32xf32> -> tensor<64x32xf32>
  %m = tile.load %r[d0] : memref<64xf32> -> tensor<64xf32>
  %c = payload.constant 1.44269502 : tensor<64x32xf32>
  %two = payload.constant 2.0 : tensor<64x32xf32>
  %b = tile.broadcast %m along [1] : tensor<64xf32> -> tensor<64x32xf32>
  %d = arith.subf %x, %b : tensor<64x32xf32>
  %y = arith.mulf %d, %c fastmath<contract> : tensor<64x32xf32>
  %strict = arith.mulf %d, %c : tensor<64x32xf32>
  %large = arith.mulf %d, %two fastmath<contract> : tensor<64x32xf32>
  %e = arith.subf %x, %y : tensor<64x32xf32>
  %elements = arith.mulf %e, %c fastmath<contract> : tensor<64x32xf32>
  %s = arith.addf %strict, %large : tensor<64x32xf32>
  %t = arith.addf %s, %elements : tensor<64x32xf32>
  tile.store %t, %z[d0, d1] : tensor<64x32xf32>, memref<64x32xf32>
}

// -----

// What moves sums from the row %a to the row %b moves them by the difference of the rounded products.
// CHECK-LABEL: tile.kernel @moves
// CHECK:         [[R:%.*]] = arith.mulf %a, %c : tensor<64xf32>
// CHECK:         [[RA:%.*]] = payload.cmp lt
// CHECK:         [[S:%.*]] = arith.mulf %b, %c : tensor<64xf32>
// CHECK:         [[SA:%.*]] = payload.cmp lt
// CHECK-NEXT:    [[BOTH:%.*]] = arith.andi [[RA]], [[SA]]
// CHECK-NEXT:    [[BY:%.*]] = arith.subf [[R]], [[S]] : tensor<64xf32>
// CHECK-NEXT:    [[WHOLE:%.*]] = arith.mulf %d, %c : tensor<64xf32>
// CHECK-NEXT:    {{%.*}} = payload.select [[BOTH]], [[BY]], [[WHOLE]] : tensor<64xf32>
tile.kernel @moves(%q: memref<64xf32>, %r: memref<64xf32>) blocks () in [] warps 4 {
  %a = tile.load %q[d0] : memref<64xf32> -> tensor<64xf32>
  %b = tile.load %r[d0] : memref<64xf32> -> tensor<64xf32>
  %c = payload.constant 1.5 : tensor<64xf32>
  %d = arith.subf %a, %b : tensor<64xf32>
  %y = arith.mulf %d, %c fastmath<reassoc> : tensor<64xf32>
  tile.store %y, %r[d0] : tensor<64xf32>, memref<64xf32>
}

// -----

// The lanes of a CPU have no such rows.
// CHECK-LABEL: tile.kernel @core
// CHECK-NOT:     math.fma
tile.kernel @core(%z: memref<64x32xf32>, %r: memref<64xf32>) blocks () in [] warps 1 lanes 1 {
  %x = tile.load %z[d0, d1] : memref<64x32xf32> -> tensor<64x32xf32>
  %m = tile.load %r[d0] : memref<64xf32> -> tensor<64xf32>
  %c = payload.constant 1.5 : tensor<64x32xf32>
  %b = tile.broadcast %m along [1] : tensor<64xf32> -> tensor<64x32xf32>
  %d = arith.subf %x, %b : tensor<64x32xf32>
  %y = arith.mulf %d, %c fastmath<contract> : tensor<64x32xf32>
  tile.store %y, %z[d0, d1] : tensor<64x32xf32>, memref<64x32xf32>
}
