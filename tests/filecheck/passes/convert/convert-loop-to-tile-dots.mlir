// RUN: dl-opt %s --split-input-file --remarks -p convert-loop-to-tile,cse,dce | filecheck %s

// The summed index stands between rows and columns, so the right factor is loaded the other way round; in chunks each
// dot adds to the sums, and past the end of the index both factors are zero.

// CHECK-LABEL: tile.kernel @k0(%w: memref<16x40xf32>, %x: memref<64x40xf32>, %y: memref<64x16xf32>)
// CHECK:         %[[S:.*]] = scf.for %k = %c0 to %c2 step %{{.*}} iter_args(%[[OLD:.*]] = %s) -> (tensor<64x16xf32>) {
// CHECK-NEXT:      %b = tile.load %w[d1, d0 + %k * 32] where 0 <= d0 + %k * 32 < 40 else %[[Z:.*]] : memref<16x40xf32> -> tensor<32x16xf32>
// CHECK-NEXT:      %n = arith.negf %b : tensor<32x16xf32>
// CHECK-NEXT:      %a = tile.load %x{{.*}} else %[[Z]] : memref<64x40xf32> -> tensor<64x32xf32>
// CHECK-NEXT:      %[[NEW:.*]] = tile.dot %a, %n, %[[OLD]] : tensor<64x32xf32>, tensor<32x16xf32>, tensor<64x16xf32> -> tensor<64x16xf32>
// CHECK-NEXT:      scf.yield %[[NEW]]
func.func @main(%x: tensor<64x40xf32>, %w: tensor<16x40xf32>) -> tensor<64x16xf32> {
  %y = loop.nest (%i, %j) in [64, 16] -> tensor<64x16xf32> attributes {schedule = #tile.schedule<block = [64, 16], chunk = [32], warps = 1>} {
    %s = loop.reduce add (%k) in [40] -> f32 {
      %b = loop.load %w[%j, %k] : tensor<16x40xf32>
      %n = arith.negf %b : f32
      %a = loop.load %x[%i, %k] : tensor<64x40xf32>
      %p = arith.mulf %n, %a : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<64x16xf32>
}

// -----

// At once, starting from zero. A product of more dimensions is summed as any other value, with a remark.

// CHECK:       remark: [convert-loop-to-tile] loop.reduce: 3 free and 1 summed dimensions; a dot has 2 and 1
// CHECK-LABEL: tile.kernel @k0
// CHECK:         %[[ZERO:.*]] = payload.constant 0.000000e+00 : tensor<8x8xf32>
// CHECK-NEXT:    %s = tile.dot %a, %c, %[[ZERO]] : tensor<8x16xf32>, tensor<16x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
// CHECK-LABEL: tile.kernel @k1
// CHECK:         %p = arith.mulf %{{.*}}, %{{.*}} : tensor<4x8x8x16xf32>
// CHECK-NEXT:    tile.reduce add %p over [3]
// CHECK-NOT:     tile.dot
func.func @main(%x: tensor<4x8x16xf32>, %w: tensor<4x8x16xf32>) -> (tensor<4x8x8xf32>, tensor<4x8x8xf32>) {
  %y = loop.nest (%b, %i, %j) in [4, 8, 8] -> tensor<4x8x8xf32> attributes {schedule = #tile.schedule<block = [1, 8, 8], chunk = [16], warps = 1>} {
    %s = loop.reduce add (%k) in [16] -> f32 {
      %a = loop.load %x[%b, %i, %k] : tensor<4x8x16xf32>
      %c = loop.load %w[%b, %j, %k] : tensor<4x8x16xf32>
      %p = arith.mulf %a, %c : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  %z = loop.nest (%b, %i, %j) in [4, 8, 8] -> tensor<4x8x8xf32> attributes {schedule = #tile.schedule<block = [4, 8, 8], chunk = [16], warps = 1>} {
    %s = loop.reduce add (%k) in [16] -> f32 {
      %a = loop.load %x[%b, %i, %k] : tensor<4x8x16xf32>
      %c = loop.load %w[%b, %j, %k] : tensor<4x8x16xf32>
      %p = arith.mulf %a, %c : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y, %z : tensor<4x8x8xf32>, tensor<4x8x8xf32>
}
