// RUN: dl-opt %s -p loop-split-dimensions,dce --split-input-file | filecheck %s
// RUN: %check_each %s -p loop-split-dimensions --split-input-file

// A free index: two digits, and the result keeps its shape. A cast of the index is computed from the digits.
func.func @main(%x: tensor<8x3x64xf32>) -> tensor<3x512xf32> {
  // CHECK:      %y = loop.nest (%i, %jo, %ji) in [3, 8, 64] to [%i, %jo * 64 + %ji] -> tensor<3x512xf32> {
  // CHECK-NEXT:   loop.load %x[%jo, %i, %ji] : tensor<8x3x64xf32>
  // CHECK-NEXT:   %[[O:.*]] = payload.cast %jo : index -> i64
  // CHECK-NEXT:   %[[I:.*]] = payload.cast %ji : index -> i64
  // CHECK-NEXT:   %[[C:.*]] = payload.constant 64 : i64
  // CHECK-NEXT:   %[[M:.*]] = arith.muli %[[O]], %[[C]] : i64
  // CHECK-NEXT:   arith.addi %[[M]], %[[I]] : i64
  %y = loop.nest (%i, %j) in [3, 512] -> tensor<3x512xf32> {
    %0 = loop.load %x[%j floordiv 64, %i, %j mod 64] : tensor<8x3x64xf32>
    %1 = payload.cast %j : index -> i64
    %2 = payload.cast %1 : i64 -> f32
    %3 = arith.addf %0, %2 : f32
    loop.yield %3 : f32
  }
  func.return %y : tensor<3x512xf32>
}

// -----

// Quotients and remainders that are computed of the index are its digits.
func.func @main(%x: tensor<8x64xf32>) -> tensor<512xf32> {
  // CHECK:      %y = loop.nest (%io, %ii) in [8, 64]
  // CHECK:        %[[O:.*]] = payload.cast %io : index -> i64
  // CHECK-NEXT:   %[[I:.*]] = payload.cast %ii : index -> i64
  // CHECK-NEXT:   arith.addi %[[O]], %[[I]] : i64
  %y = loop.nest (%i) in [512] -> tensor<512xf32> {
    %0 = loop.load %x[%i floordiv 64, %i mod 64] : tensor<8x64xf32>
    %1 = payload.cast %i : index -> i64
    %2 = payload.constant 64 : i64
    %3 = arith.floordivsi %1, %2 : i64
    %4 = arith.remsi %1, %2 : i64
    %5 = arith.addi %3, %4 : i64
    %6 = payload.cast %5 : i64 -> f32
    %7 = arith.addf %0, %6 : f32
    loop.yield %7 : f32
  }
  func.return %y : tensor<512xf32>
}

// -----

// Reductions of equal extents in one body are split alike, so that they stay mergeable; twice where two divisors ask.
func.func @main(%x: tensor<4x2x8xf32>, %w: tensor<64xf32>) -> tensor<f32> {
  // CHECK:      loop.reduce max (%ko, %kio, %kii) in [4, 2, 8] -> f32 {
  // CHECK-NEXT:   loop.load %x[%ko, %kio, %kii]
  // CHECK:      loop.reduce add (%[[A:.*]], %[[B:.*]], %[[C:.*]]) in [4, 2, 8] -> f32 {
  // CHECK-NEXT:   loop.load %w[%[[A]] * 16 + %[[B]] * 8 + %[[C]]]
  %y = loop.nest () in [] -> tensor<f32> {
    %m = loop.reduce max (%k) in [64] -> f32 {
      %0 = loop.load %x[%k floordiv 16, (%k floordiv 8) mod 2, %k mod 8] : tensor<4x2x8xf32>
      loop.yield %0 : f32
    }
    %s = loop.reduce add (%k) in [64] -> f32 {
      %0 = loop.load %w[%k] : tensor<64xf32>
      %1 = arith.mulf %0, %m : f32
      loop.yield %1 : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<f32>
}

// -----

// Not a divisor of the extent: the access stays.
func.func @main(%x: tensor<2x4xf32>) -> tensor<6xf32> {
  // CHECK: loop.nest (%i) in [6] -> tensor<6xf32> {
  // CHECK-NEXT: loop.load %x[%i floordiv 4, %i mod 4]
  %y = loop.nest (%i) in [6] -> tensor<6xf32> {
    %0 = loop.load %x[%i floordiv 4, %i mod 4] : tensor<2x4xf32>
    loop.yield %0 : f32
  }
  func.return %y : tensor<6xf32>
}

// -----

// In a domain.
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  // CHECK: loop.nest (%io, %ii) in [8, 8]
  // CHECK: loop.load %x[%io * 8 + %ii] where 0 <= %ii < 5 else
  %y = loop.nest (%i) in [64] -> tensor<64xf32> {
    %zero = payload.constant 0.0 : f32
    %0 = loop.load %x[%i] where 0 <= %i mod 8 < 5 else %zero : tensor<64xf32>
    loop.yield %0 : f32
  }
  func.return %y : tensor<64xf32>
}

// -----

#s0 = #payload.symbol<s0[1:1001]>

// An index whose range is known only at run time has no divisors and stays whole; its neighbour is split.
func.func @main(%z: tensor<?xf32, #payload.extents<#s0>>, %x: tensor<125x8xf32>, %w: tensor<4x2xf32>) -> tensor<?x8xf32, #payload.extents<#s0, 8>> {
  // CHECK:      %y = loop.nest (%i, %jo, %ji) in [#s0, 4, 2] to [%i, %jo * 2 + %ji] -> tensor<?x8xf32, #payload.extents<#s0, 8>> {
  // CHECK-NEXT:   loop.load %x[%i floordiv 8, %i mod 8]
  // CHECK-NEXT:   loop.load %w[%jo, %ji]
  %y = loop.nest (%i, %j) in [#s0, 8] -> tensor<?x8xf32, #payload.extents<#s0, 8>> {
    %0 = loop.load %x[%i floordiv 8, %i mod 8] : tensor<125x8xf32>
    %1 = loop.load %w[%j floordiv 2, %j mod 2] : tensor<4x2xf32>
    %2 = arith.addf %0, %1 : f32
    loop.yield %2 : f32
  }
  func.return %y : tensor<?x8xf32, #payload.extents<#s0, 8>>
}
