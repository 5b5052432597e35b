// RUN: %roundtrip

// Sizes known only at run time: in types, loops, domains and as values. The same symbol with another range is another.

#s0 = #payload.symbol<s0[1:1001]>

// CHECK:      #s0 = #payload.symbol<s0[1:1001]>
// CHECK-NEXT: #batch = #payload.symbol<batch[0:9]>
// CHECK-NEXT: #s01 = #payload.symbol<s0[2:1001]>

// CHECK:      func.func @main(%x: tensor<?x2048xf32, #payload.extents<#s0, 2048>>, %b: memref<?x4xf32, #payload.extents<#batch, 4>>, %c: tensor<?xf32, #payload.extents<#s01>>)
func.func @main(%x: tensor<?x2048xf32, #payload.extents<#s0, 2048>>,
                %b: memref<?x4xf32, #payload.extents<#payload.symbol<batch[0:9]>, 4>>,
                %c: tensor<?xf32, #payload.extents<#payload.symbol<s0[2:1001]>>>) {
  // CHECK: loop.nest (%i) in [#s0] -> tensor<?xf32, #payload.extents<#s0>> {
  %y = loop.nest (%i) in [#s0] -> tensor<?xf32, #payload.extents<#s0>> {
    // CHECK: %n = payload.extent #s0 : index
    %n = payload.extent #s0 : index
    %zero = payload.constant 0.0 : f32
    // CHECK: loop.reduce add (%j) in [#s0] -> f32
    %sum = loop.reduce add (%j) in [#s0] -> f32 {
      // CHECK: where 0 <= %i < #s0
      %v = loop.load %x[%i, %j]
        where 0 <= %i < #s0 else %zero
        : tensor<?x2048xf32, #payload.extents<#s0, 2048>>
      loop.yield %v : f32
    }
    loop.yield %sum : f32
  }
  func.return
}
