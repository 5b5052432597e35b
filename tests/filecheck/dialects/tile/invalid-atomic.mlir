// RUN: %diagnostics

// CHECK: tile.atomic_rmw: expected a type to compute in, but got bf16, a storage type; cast to f32 first
tile.kernel @k(%y: memref<100xbf16>) blocks () in [] warps 1 {
  %z = payload.constant 0.0 : tensor<64xbf16>
  tile.atomic_rmw add %z, %y[d0] : tensor<64xbf16>, memref<100xbf16>
}

// -----

// CHECK: tile.atomic_rmw: expected only tile.atomic_rmw on a buffer that is combined into, but got tile.store
tile.kernel @k(%y: memref<100xf32>) blocks () in [] warps 1 {
  %z = payload.constant 0.0 : tensor<64xf32>
  tile.store %z, %y[d0] : tensor<64xf32>, memref<100xf32>
  tile.atomic_rmw add %z, %y[d0] : tensor<64xf32>, memref<100xf32>
}

// -----

tile.kernel @k(%y: memref<64xf32>) blocks () in [] warps 1 {
  %z = payload.constant 0.0 : tensor<64xf32>
  tile.atomic_rmw add %z, %y[d0] : tensor<64xf32>, memref<64xf32>
}
// CHECK: tile.launch: expected `from` with initial values, because @k combines into its result, but got none
func.func @main() -> tensor<64xf32> {
  %y = tile.launch @k() : () -> tensor<64xf32>
  func.return %y : tensor<64xf32>
}

// -----

tile.kernel @k(%y: memref<64xf32>) blocks () in [] warps 1 {
  %z = payload.constant 0.0 : tensor<64xf32>
  tile.store %z, %y[d0] : tensor<64xf32>, memref<64xf32>
}
// CHECK: tile.launch: expected no `from`, because @k does not combine into its result, but got one
func.func @main() -> tensor<64xf32> {
  %x = tile.launch @k() : () -> tensor<64xf32>
  %y = tile.launch @k() from (%x : tensor<64xf32>) : () -> tensor<64xf32>
  func.return %y : tensor<64xf32>
}

// -----

tile.kernel @k(%y: memref<64xf32>) blocks () in [] warps 1 {
  %z = payload.constant 0.0 : tensor<64xf32>
  tile.atomic_rmw add %z, %y[d0] : tensor<64xf32>, memref<64xf32>
}
// CHECK: tile.launch: expected a result of another launch after `from`, but got another value
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %y = tile.launch @k() from (%x : tensor<64xf32>) : () -> tensor<64xf32>
  func.return %y : tensor<64xf32>
}
