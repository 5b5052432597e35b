// RUN: %roundtrip

#s0 = #payload.symbol<s0[1:1001]>

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<100x8xf32>, %v: tensor<5x8xf32>, %i: tensor<5x8xi64>, %n: tensor<?x4xi32, #payload.extents<#s0, 4>>, %w: tensor<3xi32>, %j: tensor<3xi16>) {
  // CHECK-NEXT: %y = tensor.scatter add %x, %v[affine_map<(d0, d1)[s0] -> (s0, d1)>](%i) : tensor<100x8xf32>, tensor<5x8xf32>, tensor<5x8xi64>
  %y = tensor.scatter add %x, %v[affine_map<(d0, d1)[s0] -> (s0, d1)>](%i) : tensor<100x8xf32>, tensor<5x8xf32>, tensor<5x8xi64>
  // CHECK-NEXT: %m = tensor.scatter max %n, %w[affine_map<(d0)[s0, s1] -> (s0, s1)>](%j, %j) {note = 1 : i64} : tensor<?x4xi32, #payload.extents<#s0, 4>>, tensor<3xi32>, tensor<3xi16>, tensor<3xi16>
  %m = tensor.scatter max %n, %w[affine_map<(d0)[s0, s1] -> (s0, s1)>](%j, %j) {note = 1 : i64} : tensor<?x4xi32, #payload.extents<#s0, 4>>, tensor<3xi32>, tensor<3xi16>, tensor<3xi16>
  func.return
}
