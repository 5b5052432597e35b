// RUN: %roundtrip

// A grid and buffers with sizes known only at run time; tiles are static, and the ends of ranges are domains.

#s0 = #payload.symbol<s0[1:1001]>

// CHECK: "test.op"() {{.*}}#payload.count<#s0 / 64>
"test.op"() {n = #payload.count<#s0 / 64>} : () -> ()

// CHECK:      tile.kernel @k(%x: memref<?x8xf32, #payload.extents<#s0, 8>>, %y: memref<?xf32, #payload.extents<#s0>>) blocks (%i, %j, %m) in [#s0 / 64, #s0, 2] warps 4 {
tile.kernel @k(%x: memref<?x8xf32, #payload.extents<#s0, 8>>, %y: memref<?xf32, #payload.extents<#s0>>) blocks (%i, %j, %m) in [#s0 / 64, #s0, 2] warps 4 {
  // CHECK-NEXT: %n = payload.extent #s0 : tensor<64xindex>
  %n = payload.extent #s0 : tensor<64xindex>
  %zero = payload.constant 0.0 : f32
  // CHECK: tile.load %x[affine_map<(d0)[s0] -> ((d0 + (s0 * 64)), 0)>](%i) where <affine_map<(d0)[s0] -> ((d0 + (s0 * 64)))> in [0:#s0]> else %zero
  %v = tile.load %x[affine_map<(d0)[s0] -> (d0 + s0 * 64, 0)>](%i) where <affine_map<(d0)[s0] -> (d0 + s0 * 64)> in [0:#s0]> else %zero : memref<?x8xf32, #payload.extents<#s0, 8>>, index -> tensor<64xf32>
  // CHECK-NEXT: tile.store %v, %y{{.*}} in [0:#s0]>
  tile.store %v, %y[affine_map<(d0)[s0] -> (d0 + s0 * 64)>](%i) where <affine_map<(d0)[s0] -> (d0 + s0 * 64)> in [0:#s0]> : tensor<64xf32>, memref<?xf32, #payload.extents<#s0>>, index
}

// CHECK: tile.launch @k(%x) : (tensor<?x8xf32, #payload.extents<#s0, 8>>) -> tensor<?xf32, #payload.extents<#s0>>
func.func @main(%x: tensor<?x8xf32, #payload.extents<#s0, 8>>) -> tensor<?xf32, #payload.extents<#s0>> {
  %y = tile.launch @k(%x) : (tensor<?x8xf32, #payload.extents<#s0, 8>>) -> tensor<?xf32, #payload.extents<#s0>>
  func.return %y : tensor<?xf32, #payload.extents<#s0>>
}
