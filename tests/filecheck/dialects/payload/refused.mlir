// RUN: %diagnostics

// CHECK: expected a nonempty range of the size s0, but got [5:5]
%x = "test.op"() : () -> (tensor<?xf32, #payload.extents<#payload.symbol<s0[5:5]>>>)

// -----

// CHECK: expected extents that are not negative, but got n with minimum {{.*}}
%x = "test.op"() : () -> (tensor<?xf32, #payload.extents<#payload.symbol<n[-4:5]>>>)

// -----

// CHECK: expected a size name of lower case letters, digits and underscores, but got 'S0'
%x = "test.op"() : () -> (tensor<?xf32, #payload.extents<#payload.symbol<S0[0:5]>>>)

// -----

// CHECK: expected a symbol among the extents, but got [4]; write static extents in the shape
%x = "test.op"() : () -> (tensor<4xf32, #payload.extents<4>>)

// -----

// CHECK: expected a number or a #payload.symbol
%x = "test.op"() : () -> (tensor<?xf32, #payload.extents<f32>>)

// -----

// CHECK: payload.extent: expected an integer or index type, but got f32
%n = payload.extent #payload.symbol<s0[0:5]> : f32

// -----

// CHECK: payload.extent: 5 : i64 should be of base attribute payload.symbol
%n = "payload.extent"() <{symbol = 5 : i64}> : () -> i64

// -----

// CHECK: loop.nest: expected extents that match the shape of tensor<?x4xf32, #payload.extents<#payload.symbol<s0[0:5]>>>
%x = "test.op"() : () -> (tensor<?x4xf32, #payload.extents<#payload.symbol<s0[0:5]>>>)
%y = loop.nest (%i, %j) in [2, 4] -> tensor<?x4xf32, #payload.extents<#payload.symbol<s0[0:5]>>> {
  %z = payload.constant 0.0 : f32
  loop.yield %z : f32
}

// -----

// CHECK: loop.nest: expected a symbol for each ? of a type, but got tensor<?xf32>; list all extents in #payload.extents<...>
%y = loop.nest (%i) in [2] -> tensor<?xf32> {
  %z = payload.constant 0.0 : f32
  loop.yield %z : f32
}

// -----

// CHECK: loop.nest: expected an index of symbolic extent alone in a coordinate of the result map, but got ((d1 * 4) + d0)
%y = loop.nest (%i, %j) in [4, #payload.symbol<s0[0:5]>] to [%j * 4 + %i] -> tensor<20xf32> {
  %z = payload.constant 0.0 : f32
  loop.yield %z : f32
}

// -----

// CHECK: expected a map of 2 symbols with results for the size m, but got ()[s0] -> (s0)
"test.op"() {a = #payload.derived<#payload.symbol<m[0:5]> = affine_map<()[s0] -> (s0)>[#payload.symbol<n[0:5]>, #payload.symbol<k[0:5]>]>} : () -> ()

// -----

// CHECK: expected two sizes for the remainder m, but got 1
"test.op"() {a = #payload.derived<#payload.symbol<m[0:5]> = remainder affine_map<()[s0] -> (s0)>[#payload.symbol<n[0:5]>]>} : () -> ()

// -----

// CHECK: expected two sizes for the minimum m, but got 1
"test.op"() {a = #payload.derived<#payload.symbol<m[0:5]> = minimum affine_map<()[s0] -> (s0)>[#payload.symbol<n[0:5]>]>} : () -> ()

// -----

// CHECK: expected a #payload.symbol
"test.op"() {a = #payload.derived<#payload.symbol<m[0:5]> = affine_map<()[s0] -> (s0)>[4]>} : () -> ()

// -----

// CHECK: expected an affine map
"test.op"() {a = #payload.derived<#payload.symbol<m[0:5]> = 4[#payload.symbol<n[0:5]>]>} : () -> ()

// -----

// CHECK: expected tiles of at least one element, but got 0
%x = "test.op"() {n = #payload.count<#payload.symbol<s0[0:5]> / 0>} : () -> i64

// -----

// CHECK: expected a #payload.symbol divided by a number
%x = "test.op"() {n = #payload.count<7>} : () -> i64

// -----

// CHECK: payload.cast: expected floats with `reassoc`, but got f32 and i32
%x = "test.op"() : () -> f32
%y = payload.cast %x reassoc : f32 -> i32

// -----

// CHECK: expected f32 to round to tf32, but got bf16
%x = "test.op"() : () -> bf16
%y = payload.round_tf32 %x : bf16

// -----

// CHECK: payload.fmod: expected floats as operands of fmod, but got i32; for integers use arith.remsi
%x = "test.op"() : () -> i32
%y = payload.fmod %x, %x : i32

// -----

// CHECK: expected parts of f32, but got f64
%x = "test.op"() : () -> f64
%y = payload.combine_bf16x3 %x, %x, %x : f64

// -----

// CHECK: payload.logaddexp: expected floats as operands of logaddexp, but got i32
%x = "test.op"() : () -> i32
%y = payload.logaddexp %x, %x : i32
