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
  // CHECK: tile.load %x[d0 + %i * 64, 0] where 0 <= d0 + %i * 64 < #s0 else %zero
  %v = tile.load %x[d0 + %i * 64, 0] where 0 <= d0 + %i * 64 < #s0 else %zero : memref<?x8xf32, #payload.extents<#s0, 8>> -> tensor<64xf32>
  // CHECK-NEXT: tile.store %v, %y{{.*}} where 0 <= {{.*}} < #s0
  tile.store %v, %y[d0 + %i * 64] where 0 <= d0 + %i * 64 < #s0 : tensor<64xf32>, memref<?xf32, #payload.extents<#s0>>
}

// CHECK: tile.launch @k(%x) : (tensor<?x8xf32, #payload.extents<#s0, 8>>) -> tensor<?xf32, #payload.extents<#s0>>
func.func @main(%x: tensor<?x8xf32, #payload.extents<#s0, 8>>) -> tensor<?xf32, #payload.extents<#s0>> {
  %y = tile.launch @k(%x) : (tensor<?x8xf32, #payload.extents<#s0, 8>>) -> tensor<?xf32, #payload.extents<#s0>>
  func.return %y : tensor<?xf32, #payload.extents<#s0>>
}
