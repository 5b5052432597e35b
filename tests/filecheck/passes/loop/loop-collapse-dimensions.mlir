// RUN: dl-opt %s -p loop-collapse-dimensions,cse,dce --split-input-file | filecheck %s
// RUN: %check_each %s -p loop-collapse-dimensions,cse,dce --split-input-file

// Images of 7 by 7: their elements are one dimension, and what is returned has its shape. Nothing joins the channels,
// which the bias has alone.
func.func @main(%x: tensor<4x8x7x7xf32>, %b: tensor<8xf32>) -> tensor<4x8x7x7xf32> {
  // CHECK:      %[[X:.*]] = loop.reshape %x : tensor<4x8x7x7xf32> -> tensor<4x8x49xf32>
  // CHECK-NEXT: %[[Y:.*]] = loop.nest (%n, %c, %hw) in [4, 8, 49] -> tensor<4x8x49xf32> {
  // CHECK-NEXT:   loop.load %[[X]][%n, %c, %hw] : tensor<4x8x49xf32>
  // CHECK-NEXT:   loop.load %b[%c] : tensor<8xf32>
  // CHECK:      %[[R:.*]] = loop.reshape %[[Y]] : tensor<4x8x49xf32> -> tensor<4x8x7x7xf32>
  // CHECK-NEXT: func.return %[[R]]
  %y = loop.nest (%n, %c, %h, %w) in [4, 8, 7, 7] -> tensor<4x8x7x7xf32> {
    %0 = loop.load %x[%n, %c, %h, %w] : tensor<4x8x7x7xf32>
    %1 = loop.load %b[%c] : tensor<8xf32>
    %2 = arith.addf %0, %1 : f32
    loop.yield %2 : f32
  }
  func.return %y : tensor<4x8x7x7xf32>
}

// -----

// All dimensions but one of a size that is known at run time; the second nest reads what the first one gives, which has
// its shape in between.
#s0 = #payload.symbol<s0[1:9]>
func.func @main(%x: tensor<?x6x5xf32, #payload.extents<#s0, 6, 5>>) -> tensor<?xf32, #payload.extents<#s0>> {
  // CHECK:      %[[X:.*]] = loop.reshape %x : {{.*}} -> tensor<?x30xf32, #payload.extents<#s0, 30>>
  // CHECK-NEXT: %[[Y:.*]] = loop.nest (%i, %jk) in [#s0, 30]
  // CHECK:      %[[W:.*]] = loop.reshape %[[Y]] : {{.*}} -> tensor<?x6x5xf32, #payload.extents<#s0, 6, 5>>
  // CHECK-NEXT: %[[Z:.*]] = loop.reshape %[[W]] : {{.*}} -> tensor<?x30xf32, #payload.extents<#s0, 30>>
  // CHECK-NEXT: loop.nest (%[[I:.*]]) in [#s0]
  // CHECK-NEXT:   loop.reduce add (%pq) in [30] -> f32 {
  // CHECK-NEXT:     loop.load %[[Z]][%[[I]], %pq]
  %y = loop.nest (%i, %j, %k) in [#s0, 6, 5] -> tensor<?x6x5xf32, #payload.extents<#s0, 6, 5>> {
    %0 = loop.load %x[%i, %j, %k] : tensor<?x6x5xf32, #payload.extents<#s0, 6, 5>>
    %1 = arith.addf %0, %0 : f32
    loop.yield %1 : f32
  }
  %z = loop.nest (%i) in [#s0] -> tensor<?xf32, #payload.extents<#s0>> {
    %s = loop.reduce add (%p, %q) in [6, 5] -> f32 {
      %2 = loop.load %y[%i, %p, %q] : tensor<?x6x5xf32, #payload.extents<#s0, 6, 5>>
      loop.yield %2 : f32
    }
    loop.yield %s : f32
  }
  func.return %z : tensor<?xf32, #payload.extents<#s0>>
}

// -----

// Two that are the digits of one coordinate: nothing is reshaped, and the result needs no map. Part of a tensor has
// the elements that its dimensions count to, not these.
func.func @main(%x: tensor<30xf32>, %y: tensor<6x8xf32>) -> (tensor<30xf32>, tensor<6x5xf32>) {
  // CHECK:      loop.nest (%ij) in [30] -> tensor<30xf32> {
  // CHECK-NEXT:   loop.load %x[%ij] : tensor<30xf32>
  // CHECK:      loop.nest (%i, %j) in [6, 5] -> tensor<6x5xf32> {
  // CHECK-NEXT:   loop.load %y[%i, %j] : tensor<6x8xf32>
  %a = loop.nest (%i, %j) in [6, 5] to [%i * 5 + %j] -> tensor<30xf32> {
    %0 = loop.load %x[%i * 5 + %j] : tensor<30xf32>
    %1 = arith.negf %0 : f32
    loop.yield %1 : f32
  }
  %b = loop.nest (%i, %j) in [6, 5] -> tensor<6x5xf32> {
    %0 = loop.load %y[%i, %j] : tensor<6x8xf32>
    %1 = arith.negf %0 : f32
    loop.yield %1 : f32
  }
  func.return %a, %b : tensor<30xf32>, tensor<6x5xf32>
}

// -----

// Left as they are: dimensions whose tiles fit (8 by 4), an index that is computed with, one that a condition or
// another load has alone, sums over them that do not agree, and values that are scattered.
func.func @main(%x: tensor<8x4xf32>, %y: tensor<6x5xf32>, %z: tensor<5x6xf32>) -> (tensor<8x4xf32>, tensor<6x5xi64>, tensor<6x5xf32>, tensor<6x5xf32>, tensor<f32>) {
  // CHECK-NOT: loop.reshape
  %a = loop.nest (%i, %j) in [8, 4] -> tensor<8x4xf32> {
    %0 = loop.load %x[%i, %j] : tensor<8x4xf32>
    loop.yield %0 : f32
  }
  %b = loop.nest (%i, %j) in [6, 5] -> tensor<6x5xi64> {
    %0 = payload.cast %j : index -> i64
    loop.yield %0 : i64
  }
  %zero = payload.constant 0.0 : f32
  %c = loop.nest (%i, %j) in [6, 5] -> tensor<6x5xf32> {
    %0 = loop.load %y[%i, %j] where 0 <= %j < 3 else %zero : tensor<6x5xf32>
    loop.yield %0 : f32
  }
  %d = loop.nest (%i, %j) in [6, 5] -> tensor<6x5xf32> {
    %0 = loop.load %y[%i, %j] : tensor<6x5xf32>
    %1 = loop.load %z[%j, %i] : tensor<5x6xf32>
    %2 = arith.addf %0, %1 : f32
    loop.yield %2 : f32
  }
  %e = loop.nest () in [] -> tensor<f32> {
    %s = loop.reduce add (%p, %q) in [6, 5] -> f32 {
      %0 = loop.load %y[%p, %q] : tensor<6x5xf32>
      loop.yield %0 : f32
    }
    %t = loop.reduce add (%p, %q) in [6, 5] -> f32 {
      %0 = loop.load %z[%q, %p] : tensor<5x6xf32>
      loop.yield %0 : f32
    }
    %u = arith.addf %s, %t : f32
    loop.yield %u : f32
  }
  func.return %a, %b, %c, %d, %e : tensor<8x4xf32>, tensor<6x5xi64>, tensor<6x5xf32>, tensor<6x5xf32>, tensor<f32>
}

// -----

// What is the same everywhere is no tensor that a kernel reads.
func.func @main(%x: tensor<6x5xf32>) -> tensor<6x5xf32> {
  // CHECK:     func.func @main
  // CHECK-NOT: loop.reshape
  %c = payload.constant 2.0 : tensor<6x5xf32>
  %y = loop.nest (%i, %j) in [6, 5] -> tensor<6x5xf32> {
    %0 = loop.load %x[%i, %j] : tensor<6x5xf32>
    %1 = loop.load %c[%i, %j] : tensor<6x5xf32>
    %2 = arith.addf %0, %1 : f32
    loop.yield %2 : f32
  }
  func.return %y : tensor<6x5xf32>
}
