// RUN: dl-opt %s --split-input-file -p convert-tile-to-kernel | filecheck %s
// RUN: %check_each %s --split-input-file -p convert-tile-to-kernel

#row = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [1, 0]], lane = [], warp = []>
#rows = #tile.layout<reg = [[1]], lane = [], warp = []>

// One thread scans the registers of each row.
// CHECK-LABEL: kernel.func @one
// CHECK: kernel.scan_registers add %{{.*}}, %{{.*}} over [0, 1, 2] : vector<16xf32>, vector<2xf32>
tile.kernel @one(%x: memref<2x8xf32>, %y: memref<2x8xf32>) blocks () in [] warps 1 lanes 1 {
  %z = payload.constant 0.0 : tensor<2xf32, #rows>
  %a = tile.load %x[d0, d1] : memref<2x8xf32> -> tensor<2x8xf32, #row>
  %s, %c = tile.scan add %a, %z along 1 : tensor<2x8xf32, #row>, tensor<2xf32, #rows>
  tile.store %s, %y[d0, d1] : tensor<2x8xf32, #row>, memref<2x8xf32>
}
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %y = tile.launch @one(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return %y : tensor<2x8xf32>
}

// -----

#half = #tile.layout<reg = [[1]], lane = [[2], [4], [8], [16], [32]], warp = [[64]]>

// Registers of a thread, five rounds of shuffles, one more for the lanes before, the total of the warp, and the totals of
// the warps through shared memory.
// CHECK-LABEL: kernel.func @warps
// CHECK:         %[[S:.*]], %[[T:.*]] = kernel.scan_registers add %{{.*}}, %{{.*}} over [0] : vector<2xf32>, vector<1xf32>
// CHECK-COUNT-7: kernel.shuffle %{{.*}} from
// CHECK-NOT:     kernel.shuffle %
// CHECK:         kernel.store %{{.*}}, %{{.*}}[%warp] {{.*}}: memref<2xf32, "shared">
// CHECK:         kernel.scan_registers add %{{.*}}, %{{.*}} over [0] : vector<2xf32>, vector<1xf32>
// CHECK:         arith.addf %{{.*}}, %[[S]]
tile.kernel @warps(%x: memref<128xf32>, %y: memref<128xf32>) blocks () in [] warps 2 {
  %z = payload.constant 0.0 : f32
  %a = tile.load %x[d0] : memref<128xf32> -> tensor<128xf32, #half>
  %s, %c = tile.scan add %a, %z along 0 : tensor<128xf32, #half>, f32
  tile.store %s, %y[d0] : tensor<128xf32, #half>, memref<128xf32>
}
func.func @main(%x: tensor<128xf32>) -> tensor<128xf32> {
  %y = tile.launch @warps(%x) : (tensor<128xf32>) -> tensor<128xf32>
  func.return %y : tensor<128xf32>
}
