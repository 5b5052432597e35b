// RUN: dl-opt %s -p "plan-schedules{target=cpu}" --split-input-file | filecheck %s

// Four rows do not pay for packing the weights in every call, but once does, also of what nests make of constants.
// CHECK-LABEL: func.func @always
// CHECK-NOT: pack
// CHECK-LABEL: func.func @once
// CHECK: schedule = #tile.schedule<block = [4, {{[0-9]+}}], pack = [1],
// CHECK-LABEL: func.func @computed_once
// CHECK: schedule = #tile.schedule<block = [4, {{[0-9]+}}], pack = [1],
// CHECK-LABEL: func.func @computed
// CHECK-NOT: pack
func.func @always(%x: tensor<4x512xf32>, %w: tensor<2048x512xf32>) -> tensor<4x2048xf32> {
  %y = loop.nest (%i, %j) in [4, 2048] -> tensor<4x2048xf32> {
    %s = loop.reduce add (%k) in [512] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<4x512xf32>
      %b = loop.load %w[%j, %k] : tensor<2048x512xf32>
      %p = arith.mulf %a, %b : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<4x2048xf32>
}
func.func @once(%x: tensor<4x512xf32>, %w: tensor<2048x512xf32>) -> tensor<4x2048xf32>
    attributes {constants = array<i64: 1>} {
  %y = loop.nest (%i, %j) in [4, 2048] -> tensor<4x2048xf32> {
    %s = loop.reduce add (%k) in [512] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<4x512xf32>
      %b = loop.load %w[%j, %k] : tensor<2048x512xf32>
      %p = arith.mulf %a, %b : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<4x2048xf32>
}
func.func @computed_once(%x: tensor<4x512xf32>, %w: tensor<2048x512xf32>, %c: tensor<2048xf32>) -> tensor<4x2048xf32>
    attributes {constants = array<i64: 1, 2>} {
  %v = loop.nest (%i, %j) in [2048, 512] -> tensor<2048x512xf32> {
    %a = loop.load %w[%i, %j] : tensor<2048x512xf32>
    %b = loop.load %c[%i] : tensor<2048xf32>
    %p = arith.mulf %a, %b : f32
    loop.yield %p : f32
  }
  %y = loop.nest (%i, %j) in [4, 2048] -> tensor<4x2048xf32> {
    %s = loop.reduce add (%k) in [512] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<4x512xf32>
      %b = loop.load %v[%j, %k] : tensor<2048x512xf32>
      %p = arith.mulf %a, %b : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<4x2048xf32>
}
func.func @computed(%x: tensor<4x512xf32>, %w: tensor<2048x512xf32>, %c: tensor<2048xf32>) -> tensor<4x2048xf32>
    attributes {constants = array<i64: 1>} {
  %v = loop.nest (%i, %j) in [2048, 512] -> tensor<2048x512xf32> {
    %a = loop.load %w[%i, %j] : tensor<2048x512xf32>
    %b = loop.load %c[%i] : tensor<2048xf32>
    %p = arith.mulf %a, %b : f32
    loop.yield %p : f32
  }
  %y = loop.nest (%i, %j) in [4, 2048] -> tensor<4x2048xf32> {
    %s = loop.reduce add (%k) in [512] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<4x512xf32>
      %b = loop.load %v[%j, %k] : tensor<2048x512xf32>
      %p = arith.mulf %a, %b : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<4x2048xf32>
}
