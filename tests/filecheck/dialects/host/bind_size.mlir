// RUN: %roundtrip

// A size that is read from data, and a size computed from it.

#u0 = #payload.symbol<u0[0:9]>
#n = #payload.symbol<n[1:10]>

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8xi64>) -> tensor<?xi64, #payload.extents<#n>>
    attributes {deplodock.sizes = [#payload.derived<#n = affine_map<()[s0] -> (s0 + 1)>[#u0]>]} {
  %c = tensor.reduce add %x over [0] : tensor<8xi64> -> tensor<i64>
  // CHECK: host.bind_size %c as #u0 : tensor<i64>
  host.bind_size %c as #u0 : tensor<i64>
  // CHECK-NEXT: tensor.iota 0 : tensor<?xi64, #payload.extents<#n>>
  %r = tensor.iota 0 : tensor<?xi64, #payload.extents<#n>>
  func.return %r : tensor<?xi64, #payload.extents<#n>>
}
