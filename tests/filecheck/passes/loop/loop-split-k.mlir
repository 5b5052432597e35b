// RUN: dl-opt %s --split-input-file --verify-diagnostics -p loop-split-k | filecheck %s

// Statistics of rows in four parts: only the row is left of the free indices. The second nest moves every part's sum into
// the frame of the common maximum with the rescaling, and does the rest.

// CHECK-LABEL: func.func @stats
// CHECK-NEXT:    %m_parts, %l_parts = loop.nest (%part, %i) in [4, 8] -> tensor<4x8xf32>, tensor<4x8xf32> attributes {schedule = #tile.schedule<block = [1, 1], chunk = [128, 128], warps = 2>} {
// CHECK-NEXT:      %m, %l = loop.staged_reduce -> f32, f32 stages {
// CHECK-NEXT:        %m0 = loop.reduce max (%k) in [128] -> f32 {
// CHECK-NEXT:          %a = loop.load %x[%i, %part * 128 + %k] : tensor<8x512xf32>
// CHECK:             %y = loop.nest (%[[I:.*]], %j) in [8, 512] -> tensor<8x512xf32> {
// CHECK-NEXT:          %[[M:.*]] = loop.reduce max (%[[P:.*]]) in [4] -> f32 {
// CHECK-NEXT:            %[[O:.*]] = loop.load %m_parts[%[[P]], %[[I]]] : tensor<4x8xf32>
// CHECK-NEXT:            loop.yield %[[O]] : f32
// CHECK:               %[[L:.*]] = loop.reduce add (%[[Q:.*]]) in [4] -> f32 {
// CHECK-NEXT:            %[[OM:.*]] = loop.load %m_parts[%[[Q]], %[[I]]]
// CHECK-NEXT:            %[[OL:.*]] = loop.load %l_parts[%[[Q]], %[[I]]]
// CHECK-NEXT:            %[[D:.*]] = arith.subf %[[OM]], %[[M]] : f32
// CHECK-NEXT:            %[[S:.*]] = math.exp %[[D]] : f32
// CHECK-NEXT:            %[[T:.*]] = arith.mulf %[[OL]], %[[S]] : f32
// CHECK-NEXT:            loop.yield %[[T]] : f32
// CHECK:               %o = arith.mulf %b, %[[L]] : f32
func.func @stats(%x: tensor<8x512xf32>) -> tensor<8x512xf32> {
  %y = loop.nest (%i, %j) in [8, 512] -> tensor<8x512xf32> attributes {schedule = #tile.schedule<block = [1, 512], chunk = [256, 256], warps = 4, split_k = 4>} {
    %m, %l = loop.staged_reduce -> f32, f32 stages {
      %m0 = loop.reduce max (%k) in [512] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<8x512xf32>
        loop.yield %a : f32
      }
      %l0 = loop.reduce add (%k) in [512] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<8x512xf32>
        %d = arith.subf %a, %m0 : f32
        %e = math.exp %d : f32
        loop.yield %e : f32
      }
      loop.yield %m0, %l0 : f32, f32
    } rescale (%om: f32, %ol: f32, %nm: f32, %nl: f32) {
      %d = arith.subf %om, %nm : f32
      %s = math.exp %d : f32
      %t = arith.mulf %ol, %s : f32
      loop.yield %om, %t : f32, f32
    }
    %b = loop.load %x[%i, %j] : tensor<8x512xf32>
    %o = arith.mulf %b, %l : f32
    loop.yield %o : f32
  }
  func.return %y : tensor<8x512xf32>
}

// -----

// The index as data, and in a domain, is the whole one.

// CHECK-LABEL: func.func @index
// CHECK:         loop.nest (%part) in [2] -> tensor<2xi64>
// CHECK-NEXT:      %s = loop.reduce add (%k) in [5] -> i64 {
// CHECK:             %a = loop.load %x[%part * 5 + %k - 1] where 0 <= %part * 5 + %k - 1 < 9
// CHECK-NEXT:        %[[P:.*]] = payload.cast %part : index -> i64
// CHECK-NEXT:        %[[N:.*]] = payload.constant 5 : i64
// CHECK-NEXT:        %[[F:.*]] = arith.muli %[[P]], %[[N]] : i64
// CHECK-NEXT:        %[[K:.*]] = payload.cast %k : index -> i64
// CHECK-NEXT:        %[[I:.*]] = arith.addi %[[F]], %[[K]] : i64
// CHECK-NEXT:        arith.muli %a, %[[I]] : i64
func.func @index(%x: tensor<9xi64>) -> tensor<i64> {
  %y = loop.nest () in [] -> tensor<i64> attributes {schedule = #tile.schedule<block = [], chunk = [8], split_k = 2>} {
    %s = loop.reduce add (%k) in [10] -> i64 {
      %z = payload.constant 0 : i64
      %a = loop.load %x[%k - 1] where 0 <= %k - 1 < 9 else %z : tensor<9xi64>
      %i = payload.cast %k : index -> i64
      %p = arith.muli %a, %i : i64
      loop.yield %p : i64
    }
    loop.yield %s : i64
  }
  func.return %y : tensor<i64>
}

// -----

// CHECK: error: loop.nest: split_k: 3 parts of equal size do not make [10]
func.func @uneven(%x: tensor<10xf32>) -> tensor<f32> {
  %y = loop.nest () in [] -> tensor<f32> attributes {schedule = #tile.schedule<block = [], chunk = [8], split_k = 3>} {
    %s = loop.reduce add (%k) in [10] -> f32 {
      %a = loop.load %x[%k] : tensor<10xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<f32>
}

// -----

// CHECK: error: loop.nest: split_k: the nest has 0 outermost reductions; one can be split
func.func @nothing(%x: tensor<10xf32>) -> tensor<10xf32> {
  %y = loop.nest (%i) in [10] -> tensor<10xf32> attributes {schedule = #tile.schedule<block = [2], split_k = 2>} {
    %a = loop.load %x[%i] : tensor<10xf32>
    loop.yield %a : f32
  }
  func.return %y : tensor<10xf32>
}

// -----

// CHECK: error: loop.nest: split_k: 2 parts of equal size do not make [s0]
func.func @unknown(%x: tensor<?xf32, #payload.extents<#payload.symbol<s0[1:9]>>>) -> tensor<f32> {
  %y = loop.nest () in [] -> tensor<f32> attributes {schedule = #tile.schedule<block = [], chunk = [8], split_k = 2>} {
    %s = loop.reduce add (%k) in [#payload.symbol<s0[1:9]>] -> f32 {
      %a = loop.load %x[%k] : tensor<?xf32, #payload.extents<#payload.symbol<s0[1:9]>>>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<f32>
}
