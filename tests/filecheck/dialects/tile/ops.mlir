// RUN: dl-opt %s | dl-opt | filecheck %s

// Every operation of the dialect, printed and read again.

#half = #tile.layout<reg = [[0, 1]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = []>

// CHECK-LABEL: tile.kernel @ops(%x: memref<100x8xf32>, %at: memref<8xi64>, %y: memref<100x8xf32>) blocks (%i) in [13] warps 1 attributes {schedule = #tile.schedule<block = [8, 8], serial = [1], chunk = [4, 2], thread = [2, 2], warps = 1, stages = 2, split_k = 3, cluster = 2, atom = mma, copy = cp_async>} {
tile.kernel @ops(%x: memref<100x8xf32>, %at: memref<8xi64>, %y: memref<100x8xf32>) blocks (%i) in [13] warps 1
    attributes {schedule = #tile.schedule<copy = cp_async, atom = mma, split_k = 3, stages = 2, cluster = 2, block = [8, 8], serial = [1], chunk = [4, 2], thread = [2, 2], warps = 1>} {
  // CHECK-NEXT: %zero = payload.constant 0.000000e+00 : f32
  %zero = payload.constant 0.0 : f32
  // CHECK-NEXT: %a = tile.load %x[d0 + %i * 8, d1] where 0 <= d0 + %i * 8 < 100 else %zero : memref<100x8xf32> -> tensor<8x8xf32>
  %a = tile.load %x[d0 + %i * 8, d1] where 0 <= d0 + %i * 8 < 100 else %zero : memref<100x8xf32> -> tensor<8x8xf32>
  // CHECK-NEXT: %n = tile.load %at[d0] : memref<8xi64> -> tensor<8xi64>
  %n = tile.load %at[d0] : memref<8xi64> -> tensor<8xi64>
  %s = payload.cast %n : tensor<8xi64> -> tensor<8xindex>
  // CHECK: %g = tile.load %x[%s, d0] where 0 <= %s < 100 else %zero : memref<100x8xf32> -> tensor<8xf32>
  %g = tile.load %x[%s, d0] where 0 <= %s < 100 else %zero : memref<100x8xf32> -> tensor<8xf32>
  // CHECK-NEXT: %one = tile.load %x[%i, 0] : memref<100x8xf32> -> f32
  %one = tile.load %x[%i, 0] : memref<100x8xf32> -> f32
  // CHECK-NEXT: %k = tile.affine d0 + %i * 8 : tensor<8xindex>
  %k = tile.affine d0 + %i * 8 : tensor<8xindex>
  // CHECK-NEXT: %b = tile.broadcast %g along [0] : tensor<8xf32> -> tensor<8x8xf32>
  %b = tile.broadcast %g along [0] : tensor<8xf32> -> tensor<8x8xf32>
  // CHECK-NEXT: %c = tile.broadcast %one along [0, 1] : f32 -> tensor<8x8xf32>
  %c = tile.broadcast %one along [0, 1] : f32 -> tensor<8x8xf32>
  // CHECK-NEXT: %d = tile.dot %a, %b, %c : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  %d = tile.dot %a, %b, %c : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  // CHECK-NEXT: %r = tile.reduce max %d over [0] : tensor<8x8xf32> -> tensor<8xf32>
  %r = tile.reduce max %d over [0] : tensor<8x8xf32> -> tensor<8xf32>
  // CHECK-NEXT: %t = tile.reduce add %d over [0, 1] : tensor<8x8xf32> -> f32
  %t = tile.reduce add %d over [0, 1] : tensor<8x8xf32> -> f32
  // CHECK-NEXT: tile.store %d, %y[d0 + %i * 8, d1] where 0 <= d0 + %i * 8 < 100 : tensor<8x8xf32>, memref<100x8xf32>
  tile.store %d, %y[d0 + %i * 8, d1] where 0 <= d0 + %i * 8 < 100 : tensor<8x8xf32>, memref<100x8xf32>
}

// CHECK-LABEL: tile.kernel @layouts(%x: memref<8x8xf32>, %y: memref<8x8xf32>) blocks () in [] warps 1 {
tile.kernel @layouts(%x: memref<8x8xf32>, %y: memref<8x8xf32>) blocks () in [] warps 1 {
  %a = tile.load %x[d0, d1] : memref<8x8xf32> -> tensor<8x8xf32, #half>
  // CHECK: tile.convert_layout %a via "shuffles" : tensor<8x8xf32, {{.*}}> -> tensor<8x8xf32, {{.*}}>
  %b = tile.convert_layout %a via "shuffles" : tensor<8x8xf32, #half> -> tensor<8x8xf32, #tile.layout<reg = [[1, 0]], lane = [[2, 0], [4, 0], [0, 1], [0, 2], [0, 4]], warp = []>>
  // CHECK-NEXT: tile.stage %a : tensor<8x8xf32, {{.*}}> -> tensor<8x8xf32, {{.*}}>
  %s = tile.stage %a : tensor<8x8xf32, #half> -> tensor<8x8xf32, #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]>>
  tile.store %a, %y[d0, d1] : tensor<8x8xf32, #half>, memref<8x8xf32>
}

// CHECK-LABEL: func.func @main
// CHECK-NEXT:    %y = tile.launch @ops(%x, %at) : (tensor<100x8xf32>, tensor<8xi64>) -> tensor<100x8xf32>
func.func @main(%x: tensor<100x8xf32>, %at: tensor<8xi64>) -> tensor<100x8xf32> {
  %y = tile.launch @ops(%x, %at) : (tensor<100x8xf32>, tensor<8xi64>) -> tensor<100x8xf32>
  func.return %y : tensor<100x8xf32>
}

// CHECK-LABEL: tile.kernel @clusters(%x: memref<100x8xf32>) blocks (%i, %j, %l) in [3, 8, 1] warps 1 cluster 4 {
tile.kernel @clusters(%x: memref<100x8xf32>) blocks (%i, %j, %l) in [3, 8, 1] warps 1 cluster 4 {
  %zero = payload.constant 0.0 : f32
}
