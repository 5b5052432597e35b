// RUN: %diagnostics

// CHECK: tile.atomic_rmw: reduces bf16, a storage type: cast to f32 first
tile.kernel @k(%y: memref<100xbf16>) blocks () in [] warps 1 {
  %z = payload.constant 0.0 : tensor<64xbf16>
  tile.atomic_rmw add %z, %y[d0] : tensor<64xbf16>, memref<100xbf16>
}

// -----

// CHECK: tile.atomic_rmw: tile.store accesses a buffer that is combined into
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
// CHECK: tile.launch: a launch starts from a value if @k combines into its result, and only then
func.func @main() -> tensor<64xf32> {
  %y = tile.launch @k() : () -> tensor<64xf32>
  func.return %y : tensor<64xf32>
}

// -----

tile.kernel @k(%y: memref<64xf32>) blocks () in [] warps 1 {
  %z = payload.constant 0.0 : tensor<64xf32>
  tile.store %z, %y[d0] : tensor<64xf32>, memref<64xf32>
}
// CHECK: tile.launch: a launch starts from a value if @k combines into its result, and only then
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
// CHECK: tile.launch: expected a result of another launch after `from`
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %y = tile.launch @k() from (%x : tensor<64xf32>) : () -> tensor<64xf32>
  func.return %y : tensor<64xf32>
}
