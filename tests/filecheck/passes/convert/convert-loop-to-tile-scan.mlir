// RUN: dl-opt %s --split-input-file -p convert-loop-to-tile | filecheck %s
// RUN: %check_each %s --split-input-file -p convert-loop-to-tile

// A block walks along its row and carries the last element of each tile.
// CHECK-LABEL: tile.kernel @k0
// CHECK:         %[[C:.*]] = scf.for %j = %{{.*}} to %{{.*}} step %{{.*}} iter_args(%[[OLD:.*]] = %{{.*}}) -> (tensor<4xf32>) {
// CHECK-NEXT:      %[[A:.*]] = tile.load %x
// CHECK-NEXT:      %[[S:.*]], %[[NEW:.*]] = tile.scan add %[[A]], %[[OLD]] along 1 : tensor<4x16xf32>, tensor<4xf32>
// CHECK:           tile.store %[[S]], %y
// CHECK-NEXT:      scf.yield %[[NEW]] : tensor<4xf32>
func.func @main(%x: tensor<8x60xf32>) -> tensor<8x60xf32> {
  %y = loop.nest (%i, %j) in [8, 60] -> tensor<8x60xf32> attributes {schedule = #tile.schedule<block = [4, 16], serial = [1], warps = 1>} {
    %a = loop.load %x[%i, %j] : tensor<8x60xf32>
    %s = loop.scan add %a along %j : f32
    loop.yield %s : f32
  }
  func.return %y : tensor<8x60xf32>
}

// -----

// A tile of one iteration needs no tile.scan: the carry is combined with it. A second scan reads the first.
// CHECK-LABEL: tile.kernel @k0
// CHECK:         scf.for %i = %{{.*}} to %{{.*}} step %{{.*}} iter_args(%[[S:.*]] = %{{.*}}, %[[M:.*]] = %{{.*}}) -> (tensor<16xf32>, tensor<16xf32>) {
// CHECK-NEXT:      %[[A:.*]] = tile.load %x
// CHECK-NEXT:      %[[T:.*]] = arith.addf %[[S]], %[[A]]
// CHECK-NEXT:      %[[N:.*]] = arith.maximumf %[[M]], %[[T]]
// CHECK-NEXT:      tile.store %[[N]], %y
// CHECK-NEXT:      scf.yield %[[T]], %[[N]]
func.func @main(%x: tensor<8x60xf32>) -> tensor<8x60xf32> {
  %y = loop.nest (%i, %j) in [8, 60] -> tensor<8x60xf32> attributes {schedule = #tile.schedule<block = [1, 16], serial = [0], warps = 1>} {
    %a = loop.load %x[%i, %j] : tensor<8x60xf32>
    %s = loop.scan add %a along %i : f32
    %m = loop.scan max %s along %i : f32
    loop.yield %m : f32
  }
  func.return %y : tensor<8x60xf32>
}
