// RUN: dl-opt %s --split-input-file --verify-diagnostics -p convert-loop-to-tile,cse,dce | filecheck %s

// A row whose length is no power of two: the tile's end is a domain. All loads of %x are one, because the padding of all
// of them is what the maximum wants; the sum needs a mask.

// CHECK-LABEL: tile.kernel @k0(%x: memref<6x500xf32>, %y: memref<6x500xf32>) blocks (%i) in [6] warps 1
// CHECK-NEXT:    %[[LOW:.*]] = payload.constant 0xff800000 : f32
// CHECK-NEXT:    %a = tile.load %x[%i, d0] where 0 <= d0 < 500 else %[[LOW]] : memref<6x500xf32> -> tensor<512xf32>
// CHECK-NEXT:    %m = tile.reduce max %a over [0] : tensor<512xf32> -> f32
// CHECK-NEXT:    %[[M:.*]] = tile.broadcast %m along [0] : f32 -> tensor<512xf32>
// CHECK-NEXT:    %d = arith.subf %a, %[[M]] : tensor<512xf32>
// CHECK-NEXT:    %e = math.exp %d : tensor<512xf32>
// CHECK-NEXT:    %k = tile.affine d0 : tensor<512xindex>
// CHECK-NEXT:    %[[END:.*]] = payload.constant 500 : tensor<512xindex>
// CHECK-NEXT:    %[[IN:.*]] = payload.cmp lt %k, %[[END]] : tensor<512xindex>
// CHECK-NEXT:    %[[ZERO:.*]] = payload.constant 0.000000e+00 : tensor<512xf32>
// CHECK-NEXT:    %[[E:.*]] = payload.select %[[IN]], %e, %[[ZERO]] : tensor<512xf32>
// CHECK-NEXT:    %s = tile.reduce add %[[E]] over [0] : tensor<512xf32> -> f32
// CHECK-NOT:     tile.load
// CHECK:         tile.store %o, %y[%i, d0] where 0 <= d0 < 500
// CHECK:       func.func @main
// CHECK-NEXT:    %y = tile.launch @k0(%x) : (tensor<6x500xf32>) -> tensor<6x500xf32>
func.func @main(%x: tensor<6x500xf32>) -> tensor<6x500xf32> {
  %y = loop.nest (%i, %j) in [6, 500] -> tensor<6x500xf32> attributes {schedule = #tile.schedule<block = [1, 512], chunk = [512, 512], warps = 1>} {
    %m = loop.reduce max (%k) in [500] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<6x500xf32>
      loop.yield %a : f32
    }
    %s = loop.reduce add (%k) in [500] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<6x500xf32>
      %d = arith.subf %a, %m : f32
      %e = math.exp %d : f32
      loop.yield %e : f32
    }
    %b = loop.load %x[%i, %j] : tensor<6x500xf32>
    %d = arith.subf %b, %m : f32
    %e = math.exp %d : f32
    %o = arith.divf %e, %s : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<6x500xf32>
}

// -----

// In chunks: one accumulator for each element of a chunk, combined behind the loop; then the rest of the row, tile by
// tile, without computing the sum again.

// CHECK-LABEL: tile.kernel @k0(%x: memref<4x256xf32>, %y: memref<4x256xf32>) blocks (%i) in [4] warps 4
// CHECK:         %s = payload.constant 0.000000e+00 : tensor<64xf32>
// CHECK:         %[[S:.*]] = scf.for %k = %{{.*}} to %c4 step %{{.*}} iter_args(%[[OLD:.*]] = %s) -> (tensor<64xf32>) {
// CHECK-NEXT:      %a = tile.load %x[%i, d0 + %k * 64] : memref<4x256xf32> -> tensor<64xf32>
// CHECK-NEXT:      %[[NEW:.*]] = arith.addf %[[OLD]], %a : tensor<64xf32>
// CHECK-NEXT:      scf.yield %[[NEW]] : tensor<64xf32>
// CHECK-NEXT:    }
// CHECK-NEXT:    %[[SUM:.*]] = tile.reduce add %[[S]] over [0] : tensor<64xf32> -> f32
// CHECK:         scf.for %j = %{{.*}} to %c2 step
// CHECK-NEXT:      %b = tile.load %x[%i, d0 + %j * 128]
// CHECK-NEXT:      %[[WIDE:.*]] = tile.broadcast %[[SUM]] along [0] : f32 -> tensor<128xf32>
// CHECK-NEXT:      %o = arith.divf %b, %[[WIDE]] : tensor<128xf32>
// CHECK-NEXT:      tile.store %o, %y[%i, d0 + %j * 128]
func.func @main(%x: tensor<4x256xf32>) -> tensor<4x256xf32> {
  %y = loop.nest (%i, %j) in [4, 256] -> tensor<4x256xf32> attributes {schedule = #tile.schedule<block = [1, 128], serial = [1], chunk = [64], warps = 4>} {
    %s = loop.reduce add (%k) in [256] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<4x256xf32>
      loop.yield %a : f32
    }
    %b = loop.load %x[%i, %j] : tensor<4x256xf32>
    %o = arith.divf %b, %s : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<4x256xf32>
}

// -----

// A staged reduction in chunks: the old sum is moved into the frame of the new maximum, then the chunk's is added.

// CHECK-LABEL: tile.kernel @k0
// CHECK:         scf.for %k = %{{.*}} iter_args(%[[M:.*]] = %{{.*}}, %[[L:.*]] = %{{.*}}) -> (f32, f32) {
// CHECK-NEXT:      %a = tile.load
// CHECK-NEXT:      %m0 = tile.reduce max %a over [0] : tensor<32xf32> -> f32
// CHECK-NEXT:      %[[NEW:.*]] = arith.maximumf %[[M]], %m0 : f32
// CHECK-NEXT:      %[[B:.*]] = tile.broadcast %[[NEW]] along [0] : f32 -> tensor<32xf32>
// CHECK-NEXT:      %d = arith.subf %a, %[[B]] : tensor<32xf32>
// CHECK-NEXT:      %e = math.exp %d : tensor<32xf32>
// CHECK-NEXT:      %l0 = tile.reduce add %e over [0] : tensor<32xf32> -> f32
// CHECK-NEXT:      %[[D:.*]] = arith.subf %[[M]], %[[NEW]] : f32
// CHECK-NEXT:      %s = math.exp %[[D]] : f32
// CHECK-NEXT:      %t = arith.mulf %[[L]], %s : f32
// CHECK-NEXT:      %[[SUM:.*]] = arith.addf %t, %l0 : f32
// CHECK-NEXT:      scf.yield %[[NEW]], %[[SUM]] : f32, f32
func.func @main(%x: tensor<3x96xf32>) -> tensor<3xf32> {
  %y = loop.nest (%i) in [3] -> tensor<3xf32> attributes {schedule = #tile.schedule<block = [1], chunk = [32, 32], warps = 1>} {
    %m, %l = loop.staged_reduce -> f32, f32 stages {
      %m0 = loop.reduce max (%k) in [96] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<3x96xf32>
        loop.yield %a : f32
      }
      %l0 = loop.reduce add (%k) in [96] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<3x96xf32>
        %d = arith.subf %a, %m0 : f32
        %e = math.exp %d : f32
        loop.yield %e : f32
      }
      loop.yield %m0, %l0 : f32, f32
    } rescale (%om: f32, %ol: f32, %nm: f32, %nl: f32) {
      %d = arith.subf %om, %nm : f32
      %s = math.exp %d : f32
      %t = arith.mulf %ol, %s : f32
      loop.yield %om, %t : f32, f32
    }
    loop.yield %l : f32
  }
  func.return %y : tensor<3xf32>
}

// -----

// A gather: the coordinates from %at are a tile of index. Two results; nothing of 5 rows is padded by a block of 1.

// CHECK-LABEL: tile.kernel @k0(%at: memref<5x8xi64>, %t: memref<7xf32>, %y: memref<5x8xf32>, %b: memref<5x8xi1>) blocks (%i) in [5] warps 1
// CHECK-NEXT:    %n = tile.load %at[%i, d0] : memref<5x8xi64> -> tensor<8xi64>
// CHECK-NEXT:    %s = payload.cast %n : tensor<8xi64> -> tensor<8xindex>
// CHECK-NEXT:    %z = payload.constant -1.000000e+00 : f32
// CHECK-NEXT:    %a = tile.load %t[%s] where 0 <= %s < 7 else %z : memref<7xf32> -> tensor<8xf32>
// CHECK:         tile.store %a, %y
// CHECK-NEXT:    tile.store %p, %b
func.func @main(%t: tensor<7xf32>, %at: tensor<5x8xi64>) -> (tensor<5x8xf32>, tensor<5x8xi1>) {
  %y, %b = loop.nest (%i, %j) in [5, 8] -> tensor<5x8xf32>, tensor<5x8xi1> attributes {schedule = #tile.schedule<block = [1, 8], warps = 1>} {
    %n = loop.load %at[%i, %j] : tensor<5x8xi64>
    %s = payload.cast %n : i64 -> index
    %z = payload.constant -1.0 : f32
    %a = loop.load %t[symbol(%s)] where 0 <= symbol(%s) < 7 else %z : tensor<7xf32>
    %p = payload.cmp gt %a, %z : f32
    loop.yield %a, %p : f32, i1
  }
  func.return %y, %b : tensor<5x8xf32>, tensor<5x8xi1>
}

// -----

// CHECK: error: loop.nest: the nest has no schedule; run plan-schedules first
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> {
    %a = loop.load %x[%i] : tensor<4xf32>
    loop.yield %a : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// Chunks of which every term is masked are not visited: the 32 rows of a block need the columns up to their last row,
// and those from 39 before their first row on.

// CHECK-LABEL: tile.kernel @k0(%x: memref<128x128xf32>, %y: memref<128xf32>) blocks (%i) in [4] warps 1
// CHECK:         %[[STOP:.*]] = tile.affine %i * 2 + 2 : index
// CHECK-NEXT:    %[[FROM:.*]] = tile.affine %i * 2 - 3 : index
// CHECK-NEXT:    %[[START:.*]] = arith.maxsi %[[FROM]], %c0 : index
// CHECK:         scf.for %k = %[[START]] to %[[STOP]] step %c1
func.func @main(%x: tensor<128x128xf32>) -> tensor<128xf32> {
  %y = loop.nest (%i) in [128] -> tensor<128xf32> attributes {schedule = #tile.schedule<block = [32], chunk = [16], warps = 1>} {
    %zero = payload.constant 0.0 : f32
    %n = payload.cast %i : index -> i64
    %s = loop.reduce add (%k) in [128] -> f32 {
      %m = payload.cast %k : index -> i64
      %far = payload.constant 40 : i64
      %since = arith.subi %n, %far : i64
      %before = payload.cmp le %m, %n : i64
      %near = payload.cmp gt %m, %since : i64
      %c = arith.andi %before, %near : i1
      %a = loop.load %x[%i, %k] : tensor<128x128xf32>
      %t = payload.select %c, %a, %zero : f32
      loop.yield %t : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<128xf32>
}

// -----

#s0 = #payload.symbol<s0[1:1001]>
#s1 = #payload.symbol<s1[0:9001]>
#s2 = #payload.symbol<s2[1:65]>

// Sizes known at run time: the grid and the number of chunks are quotients, rounded up, and every tile has an end. The
// exponential needs a mask, its padding would count. An index of at most 64 values in a tile of 64 has no counter.

// CHECK-LABEL: tile.kernel @k0(%x: memref<?x?xf32, #payload.extents<#s0, #s1>>, %y: memref<?xf32, #payload.extents<#s0>>) blocks (%i) in [#s0 / 4] warps 2
// CHECK:         %s1 = payload.extent #s1 : index
// CHECK-NEXT:    %c255 = arith.constant 255 : index
// CHECK-NEXT:    %[[N:.*]] = arith.addi %s1, %c255 : index
// CHECK-NEXT:    %c256 = arith.constant 256 : index
// CHECK-NEXT:    %count = arith.divui %[[N]], %c256 : index
// CHECK:         scf.for %k = %c0 to %count step %c1 iter_args
// CHECK-NEXT:      %a = tile.load %x[{{.*}}] where 0 <= d0 + %i * 4 < #s0 and 0 <= d1 + %k * 256 < #s1
// CHECK-NEXT:      %e = math.exp %a : tensor<4x256xf32>
// CHECK-NEXT:      %[[K:.*]] = tile.affine d0 + %k * 256 : tensor<256xindex>
// CHECK-NEXT:      %[[END:.*]] = payload.extent #s1 : tensor<256xindex>
// CHECK-NEXT:      %[[IN:.*]] = payload.cmp lt %[[K]], %[[END]] : tensor<256xindex>
// CHECK:         tile.store %{{.*}}, %y[d0 + %i * 4] where 0 <= d0 + %i * 4 < #s0
// CHECK:       tile.kernel @k1(%z: memref<?xf32, #payload.extents<#s2>>, %o: memref<f32>) blocks () in [] warps 1
// CHECK-NOT:     scf.for
// CHECK:         tile.load %z[d0] where 0 <= d0 < #s2 else
func.func @main(%x: tensor<?x?xf32, #payload.extents<#s0, #s1>>, %z: tensor<?xf32, #payload.extents<#s2>>) -> (tensor<?xf32, #payload.extents<#s0>>, tensor<f32>) {
  %y = loop.nest (%i) in [#s0] -> tensor<?xf32, #payload.extents<#s0>> attributes {schedule = #tile.schedule<block = [4], chunk = [256], warps = 2>} {
    %s = loop.reduce add (%k) in [#s1] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<?x?xf32, #payload.extents<#s0, #s1>>
      %e = math.exp %a : f32
      loop.yield %e : f32
    }
    loop.yield %s : f32
  }
  %o = loop.nest () in [] -> tensor<f32> attributes {schedule = #tile.schedule<block = [], chunk = [64], warps = 1>} {
    %s = loop.reduce max (%k) in [#s2] -> f32 {
      %a = loop.load %z[%k] : tensor<?xf32, #payload.extents<#s2>>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %y, %o : tensor<?xf32, #payload.extents<#s0>>, tensor<f32>
}

// -----

// An assertion holds in lanes behind the end of a row, whatever is there.
// CHECK:      %[[HELD:.*]] = payload.cmp ge %{{.*}}, %{{.*}} : tensor<4xi64>
// CHECK:      %[[AT:.*]] = tile.affine d0 : tensor<4xindex>
// CHECK-NEXT: %[[END:.*]] = payload.constant 3 : tensor<4xindex>
// CHECK-NEXT: %[[IN:.*]] = payload.cmp lt %[[AT]], %[[END]] : tensor<4xindex>
// CHECK-NEXT: %[[TRUE:.*]] = payload.constant true : tensor<4xi1>
// CHECK-NEXT: %[[ALL:.*]] = payload.select %[[IN]], %[[HELD]], %[[TRUE]] : tensor<4xi1>
// CHECK-NEXT: payload.assert %{{.*}} where %[[ALL]], "not negative" : tensor<4xi64>
func.func @main(%x: tensor<3xi64>) -> tensor<3xi64> {
  %y = loop.nest (%i) in [3] -> tensor<3xi64> attributes {schedule = #tile.schedule<block = [4], warps = 1>} {
    %a = loop.load %x[%i] : tensor<3xi64>
    %seven = payload.constant 7 : i64
    %zero = payload.constant 0 : i64
    %b = arith.subi %a, %seven : i64
    %c = payload.cmp ge %b, %zero : i64
    %d = payload.assert %b where %c, "not negative" : i64
    loop.yield %d : i64
  }
  func.return %y : tensor<3xi64>
}

// -----

// Where a block is one thread, indices that are compared with each other stay indices; with anything else they are i64.
// CHECK:     payload.cmp le %{{.*}}, %{{.*}} : tensor<16x32xindex>
// CHECK-NOT: payload.cmp le %{{.*}} : tensor<16x32xi64>
// CHECK:     payload.cmp lt %{{.*}}, %{{.*}} : tensor<32xi64>
func.func @main(%x: tensor<16x32xf32>) -> tensor<16x32xf32> {
  %y = loop.nest (%i, %j) in [16, 32] -> tensor<16x32xf32> attributes {schedule = #tile.schedule<block = [16, 32], warps = 1, lanes = 1>} {
    %zero = payload.constant 0.0 : f32
    %three = payload.constant 3 : i64
    %n = payload.cast %i : index -> i64
    %m = payload.cast %j : index -> i64
    %before = payload.cmp le %m, %n : i64
    %first = payload.cmp lt %m, %three : i64
    %c = arith.andi %before, %first : i1
    %a = loop.load %x[%i, %j] : tensor<16x32xf32>
    %t = payload.select %c, %a, %zero : f32
    loop.yield %t : f32
  }
  func.return %y : tensor<16x32xf32>
}

// -----

// Columns that one thread reduces: each chunk is added to the sums. Rows, and columns of several threads: the elements of
// a chunk are summed apart, and together at the end.
// CHECK:      tile.kernel @k0
// CHECK:      %[[COLUMNS:.*]] = tile.reduce add %{{.*}} over [1] : tensor<64x8xf32> -> tensor<64xf32>
// CHECK-NEXT: %[[SUM:.*]] = arith.addf %{{.*}}, %[[COLUMNS]] : tensor<64xf32>
// CHECK-NEXT: scf.yield %[[SUM]] : tensor<64xf32>
// CHECK:      tile.kernel @k1
// CHECK:      scf.yield %{{.*}} : tensor<2x16xf32>
// CHECK:      tile.reduce add %{{.*}} over [1] : tensor<2x16xf32> -> tensor<2xf32>
// CHECK:      tile.kernel @k2
// CHECK:      scf.yield %{{.*}} : tensor<64x8xf32>
// CHECK:      tile.reduce add %{{.*}} over [1] : tensor<64x8xf32> -> tensor<64xf32>
func.func @main(%x: tensor<32x64xf32>) -> (tensor<64xf32>, tensor<32xf32>, tensor<64xf32>) {
  %columns = loop.nest (%j) in [64] -> tensor<64xf32> attributes {schedule = #tile.schedule<block = [64], chunk = [8], warps = 1, lanes = 1>} {
    %s = loop.reduce add (%i) in [32] -> f32 {
      %a = loop.load %x[%i, %j] : tensor<32x64xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  %rows = loop.nest (%i) in [32] -> tensor<32xf32> attributes {schedule = #tile.schedule<block = [2], chunk = [16], warps = 1, lanes = 1>} {
    %s = loop.reduce add (%j) in [64] -> f32 {
      %a = loop.load %x[%i, %j] : tensor<32x64xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  %threads = loop.nest (%j) in [64] -> tensor<64xf32> attributes {schedule = #tile.schedule<block = [64], chunk = [8], warps = 1>} {
    %s = loop.reduce add (%i) in [32] -> f32 {
      %a = loop.load %x[%i, %j] : tensor<32x64xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %columns, %rows, %threads : tensor<64xf32>, tensor<32xf32>, tensor<64xf32>
}

// -----

// A result that the host has in two shapes: a launch gives it one, so two kernels compute it.
func.func @main(%x: tensor<6x10xf32>) -> (tensor<6x10xf32>, tensor<2x3x10xf32>) {
  // CHECK:      %[[A:.*]] = tile.launch @k0(%x) : (tensor<6x10xf32>) -> tensor<2x3x10xf32>
  // CHECK-NEXT: %[[B:.*]] = tile.launch @k1(%x) : (tensor<6x10xf32>) -> tensor<6x10xf32>
  // CHECK-NEXT: func.return %[[B]], %[[A]]
  %a = loop.reshape %x : tensor<6x10xf32> -> tensor<60xf32>
  %y = loop.nest (%i) in [60] -> tensor<60xf32> attributes {schedule = #tile.schedule<block = [64], warps = 1>} {
    %0 = loop.load %a[%i] : tensor<60xf32>
    %1 = math.sin %0 : f32
    loop.yield %1 : f32
  }
  %b = loop.reshape %y : tensor<60xf32> -> tensor<6x10xf32>
  %c = loop.reshape %y : tensor<60xf32> -> tensor<2x3x10xf32>
  func.return %b, %c : tensor<6x10xf32>, tensor<2x3x10xf32>
}
