// RUN: %roundtrip

// CHECK-LABEL: tile.kernel @k1
tile.kernel @k1(%v: memref<64xf32>, %i: memref<64xi64>, %y: memref<100xf32>) blocks () in [] warps 1 {
  %a = tile.load %v[d0] : memref<64xf32> -> tensor<64xf32>
  %b = tile.load %i[d0] : memref<64xi64> -> tensor<64xi64>
  %p = payload.cast %b : tensor<64xi64> -> tensor<64xindex>
  // CHECK: tile.atomic_rmw add %a, %y[%p] where 0 <= %p < 100 : tensor<64xf32>, memref<100xf32>
  tile.atomic_rmw add %a, %y[%p] where 0 <= %p < 100 : tensor<64xf32>, memref<100xf32>
}
tile.kernel @k0(%y: memref<100xf32>) blocks () in [] warps 1 {
  %z = payload.constant 0.0 : tensor<128xf32>
  tile.store %z, %y[d0] where 0 <= d0 < 100 : tensor<128xf32>, memref<100xf32>
}
// CHECK-LABEL: func.func @main
func.func @main(%v: tensor<64xf32>, %i: tensor<64xi64>) -> tensor<100xf32> {
  %z = tile.launch @k0() : () -> tensor<100xf32>
  // CHECK: %y = tile.launch @k1(%v, %i) from(%z : tensor<100xf32>) : (tensor<64xf32>, tensor<64xi64>) -> tensor<100xf32>
  %y = tile.launch @k1(%v, %i) from (%z : tensor<100xf32>) : (tensor<64xf32>, tensor<64xi64>) -> tensor<100xf32>
  func.return %y : tensor<100xf32>
}
