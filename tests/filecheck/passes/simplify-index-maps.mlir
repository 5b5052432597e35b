// RUN: dl-opt %s -p simplify-index-maps,dce --split-input-file | filecheck %s
// RUN: %check_each %s -p simplify-index-maps,dce --split-input-file

// A reshape and its inverse cancel.
// CHECK-LABEL: @round_trip
func.func @main(%x: tensor<32xf32>) -> tensor<32xf32> attributes {note = "@round_trip"} {
  %1 = tensor.index_map %x[affine_map<(d0, d1) -> (d0 * 8 + d1)>] : tensor<32xf32> -> tensor<4x8xf32>
  %2 = tensor.index_map %1[affine_map<(d0) -> (d0 floordiv 8, d0 mod 8)>] : tensor<4x8xf32> -> tensor<32xf32>
  // CHECK-NOT: index_map
  // CHECK: func.return %x
  func.return %2 : tensor<32xf32>
}

// -----

// A slice of a padded tensor: the constraint that the slice fulfils is dropped, the other one moves along.
// CHECK-LABEL: @padded
func.func @main(%x: tensor<4x5xf32>) -> tensor<6x5xf32> attributes {note = "@padded"} {
  %zero = payload.constant 0.0 : f32
  // CHECK: tensor.index_map %x[affine_map<(d0, d1) -> ((d0 + -1), d1)>] where <affine_map<(d0, d1) -> ((d0 + -1))> in [0:4]> else %zero : tensor<4x5xf32> -> tensor<6x5xf32>
  %1 = tensor.index_map %x[affine_map<(d0, d1) -> (d0 - 1, d1 - 1)>] where <affine_map<(d0, d1) -> (d0 - 1, d1 - 1)> in [0:4, 0:5]> else %zero : tensor<4x5xf32> -> tensor<6x7xf32>
  %2 = tensor.index_map %1[affine_map<(d0, d1) -> (d0, d1 + 1)>] : tensor<6x7xf32> -> tensor<6x5xf32>
  // CHECK-NEXT: func.return
  func.return %2 : tensor<6x5xf32>
}

// -----

// Two paddings with one value are one; with different values they stay two.
// CHECK-LABEL: @twice
func.func @main(%x: tensor<4xf32>) -> (tensor<8xf32>, tensor<8xf32>) attributes {note = "@twice"} {
  %zero = payload.constant 0.0 : f32
  %again = payload.constant 0.0 : f32
  %one = payload.constant 1.0 : f32
  %1 = tensor.index_map %x[affine_map<(d0) -> (d0 - 1)>] where <affine_map<(d0) -> (d0 - 1)> in [0:4]> else %zero : tensor<4xf32> -> tensor<6xf32>
  // CHECK: tensor.index_map %x[affine_map<(d0) -> ((d0 + -2))>] where <affine_map<(d0) -> ((d0 + -1), (d0 + -2))> in [0:6, 0:4]> else %zero
  %2 = tensor.index_map %1[affine_map<(d0) -> (d0 - 1)>] where <affine_map<(d0) -> (d0 - 1)> in [0:6]> else %again : tensor<6xf32> -> tensor<8xf32>
  // CHECK: tensor.index_map %{{.*}}[affine_map<(d0) -> ((d0 + -1))>] where <affine_map<(d0) -> ((d0 + -1))> in [0:6]> else %one
  %3 = tensor.index_map %1[affine_map<(d0) -> (d0 - 1)>] where <affine_map<(d0) -> (d0 - 1)> in [0:6]> else %one : tensor<6xf32> -> tensor<8xf32>
  func.return %2, %3 : tensor<8xf32>, tensor<8xf32>
}

// -----

// -0.0 is not 0.0.
// CHECK-LABEL: @signed_zero
func.func @main(%x: tensor<4xf32>) -> tensor<8xf32> attributes {note = "@signed_zero"} {
  %zero = payload.constant 0.0 : f32
  %minus = payload.constant -0.0 : f32
  // CHECK-COUNT-2: tensor.index_map
  %1 = tensor.index_map %x[affine_map<(d0) -> (d0 - 1)>] where <affine_map<(d0) -> (d0 - 1)> in [0:4]> else %zero : tensor<4xf32> -> tensor<6xf32>
  %2 = tensor.index_map %1[affine_map<(d0) -> (d0 - 1)>] where <affine_map<(d0) -> (d0 - 1)> in [0:6]> else %minus : tensor<6xf32> -> tensor<8xf32>
  func.return %2 : tensor<8xf32>
}

// -----

// Views of constants, and what lies wholly outside of its source.
// CHECK-LABEL: @constants
func.func @main(%x: tensor<4xf32>) -> (tensor<2x4xf32>, tensor<2xf32>) attributes {note = "@constants"} {
  %zero = payload.constant 0.0 : f32
  %c = payload.constant 2.5 : tensor<4xf32>
  // CHECK: payload.constant 2.500000e+00 : tensor<2x4xf32>
  %1 = tensor.index_map %c[affine_map<(d0, d1) -> (d1)>] : tensor<4xf32> -> tensor<2x4xf32>
  // CHECK-NEXT: payload.constant 0.000000e+00 : tensor<2xf32>
  %2 = tensor.index_map %x[affine_map<(d0) -> (d0 - 7)>] where <affine_map<(d0) -> (d0 - 7)> in [0:4]> else %zero : tensor<4xf32> -> tensor<2xf32>
  func.return %1, %2 : tensor<2x4xf32>, tensor<2xf32>
}

// -----

// An index of symbolic extent is below that symbol, and below no other.
// CHECK-LABEL: @symbols
#n = #payload.symbol<n[1:6]>
#m = #payload.symbol<m[1:6]>
func.func @main(%x: tensor<?xf32, #payload.extents<#n>>, %y: tensor<?xf32, #payload.extents<#m>>) -> (tensor<?xf32, #payload.extents<#n>>, tensor<?xf32, #payload.extents<#n>>) attributes {note = "@symbols"} {
  %zero = payload.constant 0.0 : f32
  // CHECK: tensor.index_map %y[affine_map<(d0) -> (d0)>] where <affine_map<(d0) -> (d0)> in [0:#m]> else %zero
  // CHECK-NEXT: func.return %x
  %1 = tensor.index_map %x[affine_map<(d0) -> (d0)>] where <affine_map<(d0) -> (d0)> in [0:#n]> else %zero : tensor<?xf32, #payload.extents<#n>> -> tensor<?xf32, #payload.extents<#n>>
  %2 = tensor.index_map %y[affine_map<(d0) -> (d0)>] where <affine_map<(d0) -> (d0)> in [0:#m]> else %zero : tensor<?xf32, #payload.extents<#m>> -> tensor<?xf32, #payload.extents<#n>>
  func.return %1, %2 : tensor<?xf32, #payload.extents<#n>>, tensor<?xf32, #payload.extents<#n>>
}
