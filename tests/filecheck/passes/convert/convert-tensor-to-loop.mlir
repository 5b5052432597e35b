// RUN: dl-opt %s -p convert-tensor-to-loop --split-input-file | filecheck %s
// RUN: %check_each %s -p convert-tensor-to-loop --split-input-file

// One nest: views become accesses, the epilogue stays outside of the reduction.
func.func @main(%x: tensor<16x64xf32>, %bias: tensor<64xf32>, %w: tensor<64x16xf32>) -> tensor<16x16xf32> {
  // CHECK:      %y = loop.nest (%i, %j) in [16, 16] -> tensor<16x16xf32> {
  // CHECK-NEXT:   %0 = loop.reduce add (%k) in [64] -> f32 {
  // CHECK-NEXT:     %1 = loop.load %x[%i, %k] : tensor<16x64xf32>
  // CHECK-NEXT:     %2 = loop.load %bias[%k] : tensor<64xf32>
  // CHECK-NEXT:     %s = arith.addf %1, %2 : f32
  // CHECK-NEXT:     %3 = loop.load %w[%k, %j] : tensor<64x16xf32>
  // CHECK-NEXT:     %p = arith.mulf %s, %3 : f32
  // CHECK-NEXT:     loop.yield %p : f32
  // CHECK-NEXT:   }
  // CHECK-NEXT:   %4 = payload.constant 0.000000e+00 : f32
  // CHECK-NEXT:   %y_1 = arith.maximumf %0, %4 : f32
  // CHECK-NEXT:   loop.yield %y_1 : f32
  // CHECK-NEXT: }
  // CHECK-NEXT: func.return %y : tensor<16x16xf32>
  %b = tensor.index_map %bias[d1] : tensor<64xf32> -> tensor<16x64xf32>
  %s = arith.addf %x, %b : tensor<16x64xf32>
  %l = tensor.index_map %s[d0, d2] : tensor<16x64xf32> -> tensor<16x16x64xf32>
  %r = tensor.index_map %w[d2, d1] : tensor<64x16xf32> -> tensor<16x16x64xf32>
  %p = arith.mulf %l, %r : tensor<16x16x64xf32>
  %m = tensor.reduce add %p over [2] : tensor<16x16x64xf32> -> tensor<16x16xf32>
  %zero = payload.constant 0.0 : tensor<16x16xf32>
  %y = arith.maximumf %m, %zero : tensor<16x16xf32>
  func.return %y : tensor<16x16xf32>
}

// -----

// A marked value is a nest of its own; equal reductions read by two users are computed once, outside of both.
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK: %e = loop.nest (%i, %j) in [4, 8]
  // CHECK: %y = loop.nest (%i_1, %j_1) in [4, 8]
  // CHECK-NOT: loop.nest
  // CHECK: loop.reduce add
  // CHECK: loop.load %e[%i_1, %k]
  // CHECK-NOT: loop.reduce
  %e = math.exp %x {fuse.root} : tensor<4x8xf32>
  %s = tensor.reduce add %e over [1] : tensor<4x8xf32> -> tensor<4xf32>
  %b = tensor.index_map %s[d0] : tensor<4xf32> -> tensor<4x8xf32>
  %q = arith.divf %e, %b : tensor<4x8xf32>
  %y = arith.addf %q, %b : tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// -----

// Padding of a value that is computed: the loads are guarded where they would leave the tensor, the rest is selected.
func.func @main(%x: tensor<5xf32>) -> tensor<7xf32> {
  // CHECK:      %[[L:.*]] = loop.load %x[%i - 1] where 0 <= %i - 1 < 5 else %{{.*}} : tensor<5xf32>
  // CHECK-NEXT: %[[E:.*]] = math.exp %[[L]] : f32
  // CHECK:      payload.select %{{.*}}, %[[E]], %{{.*}} : f32
  %zero = payload.constant 0.0 : f32
  %e = math.exp %x : tensor<5xf32>
  %p = tensor.index_map %e[d0 - 1] where 0 <= d0 - 1 < 5 else %zero : tensor<5xf32> -> tensor<7xf32>
  func.return %p : tensor<7xf32>
}

// -----

// A gather: the index is a symbol, the domain keeps it inside.
func.func @main(%t: tensor<100x8xf32>, %i: tensor<5x8xi64>) -> tensor<5x8xf32> {
  // CHECK:      %[[I:.*]] = loop.load %i[
  // CHECK-NEXT: %[[S:.*]] = payload.cast %[[I]] : i64 -> index
  // CHECK:      loop.load %t[symbol(%[[S]]), %j] where 0 <= symbol(%[[S]]) < 100 else %{{.*}} : tensor<100x8xf32>
  %g = tensor.gather %t[%i, d1] : tensor<100x8xf32> -> tensor<5x8xf32>
  func.return %g : tensor<5x8xf32>
}

// -----

// An iota is an index; gathering by one is an ordinary load, and a comparison that always holds disappears.
func.func @main(%t: tensor<10x8xf32>) -> tensor<5x8xf32> {
  // CHECK:      %[[L:.*]] = loop.load %t[%i * 2 + 1, %j] : tensor<10x8xf32>
  // CHECK-NEXT: loop.yield %[[L]]
  %i = tensor.iota 0 : tensor<5x8xi64>
  %two = payload.constant 2 : tensor<5x8xi64>
  %one = payload.constant 1 : tensor<5x8xi64>
  %zero = payload.constant 0 : tensor<5x8xi64>
  %d = arith.muli %i, %two : tensor<5x8xi64>
  %o = arith.addi %d, %one : tensor<5x8xi64>
  %n = payload.cmp lt %o, %zero : tensor<5x8xi64>
  %s = payload.select %n, %zero, %o : tensor<5x8xi64>
  %g = tensor.gather %t[%s, d1] : tensor<10x8xf32> -> tensor<5x8xf32>
  func.return %g : tensor<5x8xf32>
}

// -----

// Results that are arguments, or equal, are copied; a result of no elements is legal.
func.func @main(%x: tensor<4xf32>, %e: tensor<0x3xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<0xf32>) {
  // CHECK-COUNT-4: loop.nest
  // CHECK: func.return
  %n = arith.negf %x : tensor<4xf32>
  %s = tensor.reduce add %e over [1] : tensor<0x3xf32> -> tensor<0xf32>
  func.return %x, %n, %n, %s : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<0xf32>
}

// -----

// Three nested reductions over equal extents: the innermost index may not capture an outer one.
func.func @main(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>, %c: tensor<4x4xf32>) -> tensor<4x4xf32> {
  // CHECK: loop.reduce add (%k) in [4]
  // CHECK: loop.reduce add (%r) in [4]
  // CHECK: loop.load %c[%k, %r]
  // CHECK: loop.reduce add (%[[K:k_.*]]) in [4]
  // CHECK: loop.load %b[%[[K]], %r]
  %a1 = tensor.index_map %a[d0, d2] : tensor<4x4xf32> -> tensor<4x4x4xf32>
  %c1 = tensor.index_map %c[d1, d2] : tensor<4x4xf32> -> tensor<4x4x4xf32>
  %bs = tensor.reduce add %b over [0] : tensor<4x4xf32> -> tensor<4xf32>
  %b1 = tensor.index_map %bs[d2] : tensor<4xf32> -> tensor<4x4x4xf32>
  %ac = arith.mulf %a1, %c1 : tensor<4x4x4xf32>
  %m = arith.mulf %ac, %b1 : tensor<4x4x4xf32>
  %ab = tensor.reduce add %m over [2] : tensor<4x4x4xf32> -> tensor<4x4xf32>
  %l = tensor.index_map %ab[d0, d2] : tensor<4x4xf32> -> tensor<4x4x4xf32>
  %r = tensor.index_map %c[d2, d1] : tensor<4x4xf32> -> tensor<4x4x4xf32>
  %n = arith.mulf %l, %r : tensor<4x4x4xf32>
  %y = tensor.reduce add %n over [2] : tensor<4x4x4xf32> -> tensor<4x4xf32>
  func.return %y : tensor<4x4xf32>
}

// -----

#s0 = #payload.symbol<s0[1:1001]>

// Sizes known at run time are extents of loops and bounds of domains. What is read past the end is the fill value; an
// access that the range of its index keeps inside has no domain.
func.func @main(%x: tensor<?x4xf32, #payload.extents<#s0, 4>>, %f: f32) -> tensor<4xf32> {
  // CHECK:      %s = loop.nest (%i) in [4] -> tensor<4xf32> {
  // CHECK-NEXT:   %0 = loop.reduce add (%k) in [#s0] -> f32 {
  // CHECK-NEXT:     %1 = loop.load %x[%k - 1, %i] where 0 <= %k - 1 < #s0 else %f : tensor<?x4xf32, #payload.extents<#s0, 4>>
  // CHECK-NEXT:     %2 = loop.load %x[%k, %i] : tensor<?x4xf32, #payload.extents<#s0, 4>>
  // CHECK-NEXT:     %e = arith.mulf %1, %2 : f32
  %p = tensor.index_map %x[d1 - 1, d0] where 0 <= d1 - 1 < #s0 else %f
    : tensor<?x4xf32, #payload.extents<#s0, 4>> -> tensor<4x?xf32, #payload.extents<4, #s0>>
  %t = tensor.index_map %x[d1, d0] where 0 <= d1 < #s0 else %f
    : tensor<?x4xf32, #payload.extents<#s0, 4>> -> tensor<4x?xf32, #payload.extents<4, #s0>>
  %e = arith.mulf %p, %t : tensor<4x?xf32, #payload.extents<4, #s0>>
  %s = tensor.reduce add %e over [1] : tensor<4x?xf32, #payload.extents<4, #s0>> -> tensor<4xf32>
  func.return %s : tensor<4xf32>
}

// -----

// An assertion holds where a view has its fill value: there is no element. What is known to hold is gone.
func.func @main(%x: tensor<9xf32>, %i: tensor<4xi64>, %zero: f32) -> tensor<6xf32> {
  // CHECK:      %p = loop.nest (%i_1) in [6] -> tensor<6xf32> {
  // CHECK:        %[[IN:.*]] = payload.cmp lt %{{.*}}, %{{.*}} : i64
  // CHECK:        %[[LEGAL:.*]] = payload.cmp lt %[[I:.*]], %{{.*}} : i64
  // CHECK:        %[[HOLDS:.*]] = payload.select %[[IN]], %[[LEGAL]], %{{.*}} : i1
  // CHECK-NEXT:   payload.assert %[[I]] where %[[HOLDS]], "below" : i64
  // CHECK-NOT:    payload.assert
  %nine = payload.constant 9 : tensor<4xi64>
  %below = payload.cmp lt %i, %nine : tensor<4xi64>
  %j = payload.assert %i where %below, "below" : tensor<4xi64>
  %g = tensor.gather %x[%j] : tensor<9xf32> -> tensor<4xf32>
  %n = tensor.iota 0 : tensor<4xi64>
  %known = payload.cmp lt %n, %nine : tensor<4xi64>
  %m = payload.assert %n where %known, "known" : tensor<4xi64>
  %h = tensor.gather %x[%m] : tensor<9xf32> -> tensor<4xf32>
  %s = arith.addf %g, %h : tensor<4xf32>
  %p = tensor.index_map %s[d0] where 0 <= d0 < 4 else %zero : tensor<4xf32> -> tensor<6xf32>
  func.return %p : tensor<6xf32>
}

// -----

// An index that becomes a number without a sign is cast to that type.

// CHECK:       func.func @unsigned
// CHECK:         payload.cast %{{.*}} : i64 -> ui8
// CHECK-NEXT:    loop.yield %{{.*}} : ui8
func.func @unsigned() -> tensor<5xui8> {
  %0 = tensor.iota 0 : tensor<5xi64>
  %1 = payload.cast %0 : tensor<5xi64> -> tensor<5xui8>
  func.return %1 : tensor<5xui8>
}
