// RUN: %roundtrip

// A kernel with sizes known only at run time: in its grid, a product, in its buffers, and as bounds of checks.

#s0 = #payload.symbol<s0[1:1001]>

// CHECK:      kernel.func @k(%x: memref<4x?xf32, #payload.extents<4, #s0>>, %y: memref<?xf32, #payload.extents<#s0>>) grid [#s0 / 64, 4] warps 2 {
kernel.func @k(%x: memref<4x?xf32, #payload.extents<4, #s0>>, %y: memref<?xf32, #payload.extents<#s0>>) grid [#s0 / 64, 4] warps 2 {
  %t = kernel.id thread
  %f = payload.constant 0.0 : f32
  // CHECK: %n = payload.extent #s0 : index
  %n = payload.extent #s0 : index
  // CHECK: kernel.load %x[%t, %t] where 0 <= %t < 4 and 1 <= %t < #s0 else %f : memref<4x?xf32, #payload.extents<4, #s0>>
  %v = kernel.load %x[%t, %t] where 0 <= %t < 4 and 1 <= %t < #s0 else %f : memref<4x?xf32, #payload.extents<4, #s0>> -> vector<1xf32>
  // CHECK-NEXT: kernel.store %v, %y[%t] where 0 <= %t < #s0
  kernel.store %v, %y[%t] where 0 <= %t < #s0 : memref<?xf32, #payload.extents<#s0>>, vector<1xf32>
}

// CHECK: kernel.alloc : memref<4x?xf32, #payload.extents<4, #s0>>
func.func @main(%y: memref<?xf32, #payload.extents<#s0>>) {
  %x = kernel.alloc : memref<4x?xf32, #payload.extents<4, #s0>>
  kernel.launch @k(%x, %y) : memref<4x?xf32, #payload.extents<4, #s0>>, memref<?xf32, #payload.extents<#s0>>
  func.return
}
