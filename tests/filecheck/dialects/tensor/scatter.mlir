// RUN: %roundtrip

#s0 = #payload.symbol<s0[1:1001]>

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<100x8xf32>, %v: tensor<5x8xf32>, %i: tensor<5x8xi64>, %n: tensor<?x4xi32, #payload.extents<#s0, 4>>, %w: tensor<3xi32>, %j: tensor<3xi16>) {
  // CHECK-NEXT: %y = tensor.scatter add %v, %x[%i, d1] : tensor<5x8xf32>, tensor<100x8xf32>
  %y = tensor.scatter add %v, %x[%i, d1] : tensor<5x8xf32>, tensor<100x8xf32>
  // CHECK-NEXT: %m = tensor.scatter max %w, %n[%j, %j] {note = 1 : i64} : tensor<3xi32>, tensor<?x4xi32, #payload.extents<#s0, 4>>
  %m = tensor.scatter max %w, %n[%j, %j] {note = 1 : i64} : tensor<3xi32>, tensor<?x4xi32, #payload.extents<#s0, 4>>
  func.return
}
