// RUN: dl-opt %s -p tile-deduplicate-kernels --split-input-file | filecheck %s

// @k1 is @k0 with other names; @k2 stores another value, @k3 has another grid.
// CHECK: kernel.func @k0
// CHECK-NOT: @k1(
// CHECK: kernel.func @k2
// CHECK: kernel.func @k3
// CHECK-LABEL: func.func @main
// CHECK-NEXT: kernel.launch @k0(%x)
// CHECK-NEXT: kernel.launch @k0(%x)
// CHECK-NEXT: kernel.launch @k2(%x)
// CHECK-NEXT: kernel.launch @k3(%x)
kernel.func @k0(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 1.0 : vector<1xf32>
  kernel.store %v, %x[%i] : memref<64xf32>, vector<1xf32>
}
kernel.func @k1(%other: memref<64xf32>) grid [1] warps 1 {
  %lane = kernel.id lane
  %one = payload.constant 1.0 : vector<1xf32>
  kernel.store %one, %other[%lane] : memref<64xf32>, vector<1xf32>
}
kernel.func @k2(%x: memref<64xf32>) grid [1] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 2.0 : vector<1xf32>
  kernel.store %v, %x[%i] : memref<64xf32>, vector<1xf32>
}
kernel.func @k3(%x: memref<64xf32>) grid [2] warps 1 {
  %i = kernel.id lane
  %v = payload.constant 1.0 : vector<1xf32>
  kernel.store %v, %x[%i] : memref<64xf32>, vector<1xf32>
}
func.func @main(%x: memref<64xf32>) {
  kernel.launch @k0(%x) : memref<64xf32>
  kernel.launch @k1(%x) : memref<64xf32>
  kernel.launch @k2(%x) : memref<64xf32>
  kernel.launch @k3(%x) : memref<64xf32>
  func.return
}

// -----

// What differs is only which buffer goes where: not the same.
// CHECK: tile.kernel @k0
// CHECK: tile.kernel @k1
tile.kernel @k0(%a: memref<64xf32>, %b: memref<64xf32>, %c: memref<64xf32>) blocks () in [] warps 1 {
  %x = tile.load %a[d0] : memref<64xf32> -> tensor<64xf32>
  tile.store %x, %c[d0] : tensor<64xf32>, memref<64xf32>
}
tile.kernel @k1(%a: memref<64xf32>, %b: memref<64xf32>, %c: memref<64xf32>) blocks () in [] warps 1 {
  %x = tile.load %b[d0] : memref<64xf32> -> tensor<64xf32>
  tile.store %x, %c[d0] : tensor<64xf32>, memref<64xf32>
}
func.func @main(%x: tensor<64xf32>, %y: tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
  %0 = tile.launch @k0(%x, %y) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %1 = tile.launch @k1(%x, %y) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  func.return %0, %1 : tensor<64xf32>, tensor<64xf32>
}
