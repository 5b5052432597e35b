// RUN: dl-opt %s --split-input-file --verify-diagnostics -p convert-loop-to-tile,cse,dce | filecheck %s

// The nest of a scatter's values and index is its kernel: neither is stored. Elements past the end of the nest, and
// places outside of the result, are left out; a result map is part of where an element goes.

// CHECK-LABEL: tile.kernel @k0(%v: memref<2x25x4xf32>, %i: memref<50xi64>, %y: memref<10x4xf32>) blocks (%a) in [2] warps 1
// CHECK:         %[[P:.*]] = payload.cast %{{.*}} : tensor<32x4xi64> -> tensor<32x4xindex>
// CHECK-NEXT:    tile.atomic_rmw max %{{.*}}, %y[%[[P]], d1] where 0 <= d0 < 25 and 0 <= %[[P]] < 10 : tensor<32x4xf32>, memref<10x4xf32>
// CHECK-NEXT:  }
// CHECK-NOT:   tile.store
// CHECK:       tile.kernel @k1(%z: memref<10x4xf32>)
// CHECK:       func.func @main
// CHECK-NEXT:    %z = tile.launch @k1() : () -> tensor<10x4xf32>
// CHECK-NEXT:    %y = tile.launch @k0(%v, %i) from(%z : tensor<10x4xf32>) : (tensor<2x25x4xf32>, tensor<50xi64>) -> tensor<10x4xf32>
func.func @main(%v: tensor<2x25x4xf32>, %i: tensor<50xi64>) -> tensor<10x4xf32> {
  %w, %j = loop.nest (%a, %b, %c) in [2, 25, 4] to [%a * 25 + %b, %c] -> tensor<50x4xf32>, tensor<50x4xi64> attributes {schedule = #tile.schedule<block = [1, 32, 4], warps = 1>} {
    %0 = loop.load %v[%a, %b, %c] : tensor<2x25x4xf32>
    %1 = loop.load %i[%a * 25 + %b] : tensor<50xi64>
    loop.yield %0, %1 : f32, i64
  }
  %z = loop.nest (%a, %b) in [10, 4] -> tensor<10x4xf32> attributes {schedule = #tile.schedule<block = [16, 4], warps = 1>} {
    %0 = payload.constant 0.0 : f32
    loop.yield %0 : f32
  }
  %y = tensor.scatter max %w, %z[%j, d1] : tensor<50x4xf32>, tensor<10x4xf32>
  func.return %y : tensor<10x4xf32>
}

// -----

// CHECK: error: tensor.scatter: values and indices are results of one nest
func.func @main(%v: tensor<50xf32>, %i: tensor<50xi64>) -> tensor<10xf32> {
  %z = loop.nest (%a) in [10] -> tensor<10xf32> attributes {schedule = #tile.schedule<block = [16], warps = 1>} {
    %0 = payload.constant 0.0 : f32
    loop.yield %0 : f32
  }
  %y = tensor.scatter add %v, %z[%i] : tensor<50xf32>, tensor<10xf32>
  func.return %y : tensor<10xf32>
}
