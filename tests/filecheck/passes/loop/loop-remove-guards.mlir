// RUN: dl-opt %s -p plan-schedules,loop-remove-guards --split-input-file | filecheck %s
// RUN: %check_each %s -p plan-schedules,loop-remove-guards --split-input-file

// One chunk holds the row: the sum takes the maximum as it is.

// CHECK:      %m = loop.reduce max
// CHECK:      %l = loop.reduce add
// CHECK:        arith.subf %v1, %m : f32
// CHECK:      func.return
func.func @main(%s: tensor<4x64xf32>) -> tensor<4xf32> {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [1], chunk = [64, 64], warps = 1>} {
    %top, %total = loop.staged_reduce -> f32, f32 stages {
      %m = loop.reduce max (%k) in [64] -> f32 {
        %v = loop.load %s[%i, %k] : tensor<4x64xf32>
        loop.yield %v : f32
      }
      %lowest = payload.constant 0xff800000 : f32
      %empty = payload.cmp eq %m, %lowest : f32
      %zero = payload.constant 0.0 : f32
      %frame = payload.select %empty, %zero, %m : f32
      %l = loop.reduce add (%k1) in [64] -> f32 {
        %v1 = loop.load %s[%i, %k1] : tensor<4x64xf32>
        %d = arith.subf %v1, %frame : f32
        %p = math.exp %d : f32
        loop.yield %p : f32
      }
      loop.yield %m, %l : f32, f32
    } rescale (%m_old: f32, %l_old: f32, %m_new: f32, %l_new: f32) {
      %by = arith.subf %m_old, %m_new : f32
      %e = math.exp %by : f32
      %moved = arith.mulf %l_old, %e : f32
      loop.yield %m_old, %moved : f32, f32
    }
    loop.yield %total : f32
  }
  func.return %y : tensor<4xf32>
}

// -----

// In two chunks, and in two parts, a first one may be all minus infinity: the guard stays.

// CHECK:         %frame = payload.select
// CHECK:         arith.subf %v1, %frame : f32
// CHECK:         %frame_1 = payload.select
// CHECK:         arith.subf %v1_1, %frame_1 : f32
func.func @main(%s: tensor<4x64xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %y = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [1], chunk = [32, 32], warps = 1>} {
    %top, %total = loop.staged_reduce -> f32, f32 stages {
      %m = loop.reduce max (%k) in [64] -> f32 {
        %v = loop.load %s[%i, %k] : tensor<4x64xf32>
        loop.yield %v : f32
      }
      %lowest = payload.constant 0xff800000 : f32
      %empty = payload.cmp eq %m, %lowest : f32
      %zero = payload.constant 0.0 : f32
      %frame = payload.select %empty, %zero, %m : f32
      %l = loop.reduce add (%k1) in [64] -> f32 {
        %v1 = loop.load %s[%i, %k1] : tensor<4x64xf32>
        %d = arith.subf %v1, %frame : f32
        %p = math.exp %d : f32
        loop.yield %p : f32
      }
      loop.yield %m, %l : f32, f32
    } rescale (%m_old: f32, %l_old: f32, %m_new: f32, %l_new: f32) {
      %by = arith.subf %m_old, %m_new : f32
      %e = math.exp %by : f32
      %moved = arith.mulf %l_old, %e : f32
      loop.yield %m_old, %moved : f32, f32
    }
    loop.yield %total : f32
  }
  %z = loop.nest (%i) in [4] -> tensor<4xf32> attributes {schedule = #tile.schedule<block = [1], chunk = [64, 64], split_k = 2, warps = 1>} {
    %top, %total = loop.staged_reduce -> f32, f32 stages {
      %m = loop.reduce max (%k) in [64] -> f32 {
        %v = loop.load %s[%i, %k] : tensor<4x64xf32>
        loop.yield %v : f32
      }
      %lowest = payload.constant 0xff800000 : f32
      %empty = payload.cmp eq %m, %lowest : f32
      %zero = payload.constant 0.0 : f32
      %frame = payload.select %empty, %zero, %m : f32
      %l = loop.reduce add (%k1) in [64] -> f32 {
        %v1 = loop.load %s[%i, %k1] : tensor<4x64xf32>
        %d = arith.subf %v1, %frame : f32
        %p = math.exp %d : f32
        loop.yield %p : f32
      }
      loop.yield %m, %l : f32, f32
    } rescale (%m_old: f32, %l_old: f32, %m_new: f32, %l_new: f32) {
      %by = arith.subf %m_old, %m_new : f32
      %e = math.exp %by : f32
      %moved = arith.mulf %l_old, %e : f32
      loop.yield %m_old, %moved : f32, f32
    }
    loop.yield %total : f32
  }
  func.return %y, %z : tensor<4xf32>, tensor<4xf32>
}
