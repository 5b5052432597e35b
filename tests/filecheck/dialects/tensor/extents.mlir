// RUN: %roundtrip

// Tensor operations on sizes known only at run time, and a size computed from another.

#n = #payload.symbol<n[1:1001]>
#m = #payload.symbol<m[2:2003]>

// CHECK: attributes {deplodock.sizes = [#payload.derived<#m = affine_map<()[s0] -> (((s0 * 2) + 1))>[#n]>]}
func.func @main(%x: tensor<?x4xf32, #payload.extents<#n, 4>>) -> tensor<?xf32, #payload.extents<#m>>
    attributes {deplodock.sizes = [#payload.derived<#m = affine_map<()[s0] -> (s0 * 2 + 1)>[#n]>]} {
  // CHECK: tensor.reduce add %x over [1] : tensor<?x4xf32, #payload.extents<#n, 4>> -> tensor<?xf32, #payload.extents<#n>>
  %0 = tensor.reduce add %x over [1] : tensor<?x4xf32, #payload.extents<#n, 4>> -> tensor<?xf32, #payload.extents<#n>>
  %1 = tensor.reduce max %x over [0] : tensor<?x4xf32, #payload.extents<#n, 4>> -> tensor<4xf32>
  %zero = payload.constant 0.0 : f32
  // CHECK: where 0 <= d0 < #n else %zero
  %2 = tensor.index_map %0[d0] where 0 <= d0 < #n else %zero
    : tensor<?xf32, #payload.extents<#n>> -> tensor<?xf32, #payload.extents<#m>>
  // CHECK: tensor.iota 0 : tensor<?xi64, #payload.extents<#m>>
  %3 = tensor.iota 0 : tensor<?xi64, #payload.extents<#m>>
  // CHECK: tensor.gather
  %4 = tensor.gather %2[%3]
    : tensor<?xf32, #payload.extents<#m>> -> tensor<?xf32, #payload.extents<#m>>
  func.return %4 : tensor<?xf32, #payload.extents<#m>>
}

#q = #payload.symbol<q[0:1001]>
#less = #payload.symbol<less[-1000:0]>
#few = #payload.symbol<few[0:11]>

// A size that divides another one, a number that is negative, and a minimum.
// CHECK: #payload.derived<#q = quotient affine_map<()[s0, s1] -> (s0, s1)>[#m, #n]>
// CHECK-SAME: #payload.derived<#less = affine_map<()[s0] -> ((s0 * -1))>[#n]>
// CHECK-SAME: #payload.derived<#few = minimum affine_map<()[s0] -> (s0, 10)>[#n]>
func.func @quotient(%x: tensor<?xf32, #payload.extents<#n>>) -> tensor<?xf32, #payload.extents<#n>>
    attributes {deplodock.sizes = [#payload.derived<#q = quotient affine_map<()[s0, s1] -> (s0, s1)>[#m, #n]>,
                                   #payload.derived<#less = affine_map<()[s0] -> (s0 * -1)>[#n]>,
                                   #payload.derived<#few = minimum affine_map<()[s0] -> (s0, 10)>[#n]>]} {
  func.return %x : tensor<?xf32, #payload.extents<#n>>
}
