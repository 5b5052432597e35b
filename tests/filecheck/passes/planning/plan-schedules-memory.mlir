// RUN: dl-opt %s --split-input-file -p 'plan-schedules{target=sm_90a}' | filecheck %s
// RUN: dl-opt %s --split-input-file -p 'plan-schedules{target=sm_90a limit_memory=false}' | filecheck %s --check-prefix FREE

// 256 parts of 4 bytes lie between two kernels. Beside the results, of which one takes the 32 MiB that come on top where
// there are sums, a call may take that.

// CHECK:      memory_limit = 1028 : i64
// CHECK-NOT:  scratch_limit
// CHECK:      split_k = 256
func.func @main(%x: tensor<16777216xf32>) -> (tensor<8388608xf32>, tensor<f32>) attributes {memory_limit = 1028 : i64} {
  %e = loop.nest (%i) in [8388608] -> tensor<8388608xf32> {
    %a = loop.load %x[%i] : tensor<16777216xf32>
    %n = arith.negf %a : f32
    loop.yield %n : f32
  }
  %y = loop.nest () in [] -> tensor<f32> {
    %s = loop.reduce add (%k) in [16777216] -> f32 {
      %a = loop.load %x[%k] : tensor<16777216xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %e, %y : tensor<8388608xf32>, tensor<f32>
}

// -----

// With a byte less there are fewer parts, and the nest says how many bytes are left for them.

// CHECK:      memory_limit = 1027 : i64
// CHECK:      scratch_limit = 1023 : i64
// CHECK-SAME: split_k = 128
// FREE:       memory_limit = 1027 : i64
// FREE-NOT:   scratch_limit
// FREE:       split_k = 256
func.func @main(%x: tensor<16777216xf32>) -> (tensor<8388608xf32>, tensor<f32>) attributes {memory_limit = 1027 : i64} {
  %e = loop.nest (%i) in [8388608] -> tensor<8388608xf32> {
    %a = loop.load %x[%i] : tensor<16777216xf32>
    %n = arith.negf %a : f32
    loop.yield %n : f32
  }
  %y = loop.nest () in [] -> tensor<f32> {
    %s = loop.reduce add (%k) in [16777216] -> f32 {
      %a = loop.load %x[%k] : tensor<16777216xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %e, %y : tensor<8388608xf32>, tensor<f32>
}

// -----

// What lies in memory around a call, two tensors of 768 and 256 bytes, is not left for the function that is called.

// CHECK-LABEL: func.func private @total
// CHECK:         scratch_limit = 1020 : i64
func.func private @total(%x: tensor<16777216xf32>) -> tensor<f32> {
  %y = loop.nest () in [] -> tensor<f32> {
    %s = loop.reduce add (%k) in [16777216] -> f32 {
      %a = loop.load %x[%k] : tensor<16777216xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<f32>
}
func.func @main(%x: tensor<16777216xf32>, %v: tensor<192xf32>) -> (tensor<8388608xf32>, tensor<192xf32>) attributes {memory_limit = 2812 : i64} {
  %e = loop.nest (%i) in [8388608] -> tensor<8388608xf32> {
    %a = loop.load %x[%i] : tensor<16777216xf32>
    %n = arith.negf %a : f32
    loop.yield %n : f32
  }
  %w = loop.nest (%i) in [192] -> tensor<192xf32> {
    %a = loop.load %v[%i] : tensor<192xf32>
    %e1 = math.exp %a : f32
    loop.yield %e1 : f32
  }
  %t = func.call @total(%x) : (tensor<16777216xf32>) -> tensor<f32>
  %y = loop.nest (%i) in [192] -> tensor<192xf32> {
    %a = loop.load %w[%i] : tensor<192xf32>
    %b = loop.load %t[] : tensor<f32>
    %c = arith.addf %a, %b : f32
    loop.yield %c : f32
  }
  func.return %e, %y : tensor<8388608xf32>, tensor<192xf32>
}

// -----

// A limit in the text of a nest is kept to.

// CHECK-LABEL: func.func @limited
// CHECK:         scratch_limit = 0 : i64
// CHECK-NOT:     split_k
func.func @limited(%x: tensor<16777216xf32>) -> tensor<f32> {
  %y = loop.nest () in [] -> tensor<f32> attributes {scratch_limit = 0 : i64} {
    %s = loop.reduce add (%k) in [16777216] -> f32 {
      %a = loop.load %x[%k] : tensor<16777216xf32>
      loop.yield %a : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<f32>
}
