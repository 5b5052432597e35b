// RUN: dl-opt %s -p loop-separate-masks,cse,dce --split-input-file | filecheck %s
// RUN: %check_each %s -p loop-separate-masks --split-input-file

// What a scan sums: elements up to its own. The load is of the index that is summed over alone.
func.func @main(%x: tensor<32xf32>) -> tensor<32xf32> {
  // CHECK:      loop.reduce add (%k) in [32] -> f32 {
  // CHECK:        %[[D:.*]] = arith.addi
  // CHECK:        %[[IS:.*]] = payload.cmp ge %[[D]], %{{.*}} : i64
  // CHECK-NEXT:   %[[X:.*]] = loop.load %x[%k] : tensor<32xf32>
  // CHECK-NEXT:   payload.select %[[IS]], %[[X]], %{{.*}} : f32
  %y = loop.nest (%i) in [32] -> tensor<32xf32> {
    %zero = payload.constant 0.0 : f32
    %sum = loop.reduce add (%k) in [32] -> f32 {
      %0 = loop.load %x[%k] where 0 <= %i - %k < 32 else %zero : tensor<32xf32>
      loop.yield %0 : f32
    }
    loop.yield %sum : f32
  }
  func.return %y : tensor<32xf32>
}

// -----

// What keeps the access inside of the tensor stays.
func.func @main(%x: tensor<31xf32>) -> tensor<32xf32> {
  // CHECK: loop.load %x[%k - 1] where 1 <= %k < 32 else %{{.*}} : tensor<31xf32>
  // CHECK: payload.select
  %y = loop.nest (%i) in [32] -> tensor<32xf32> {
    %zero = payload.constant 0.0 : f32
    %sum = loop.reduce add (%k) in [32] -> f32 {
      %0 = loop.load %x[%k - 1] where 0 <= %i - %k < 32 and 1 <= %k < 32 else %zero : tensor<31xf32>
      loop.yield %0 : f32
    }
    loop.yield %sum : f32
  }
  func.return %y : tensor<32xf32>
}

// -----

// Without the condition the access would leave the tensor.
func.func @main(%x: tensor<8xf32>) -> tensor<32xf32> {
  // CHECK: loop.load %x[%k] where
  // CHECK-NOT: payload.select
  %y = loop.nest (%i) in [32] -> tensor<32xf32> {
    %zero = payload.constant 0.0 : f32
    %sum = loop.reduce add (%k) in [64] -> f32 {
      %0 = loop.load %x[%k] where 0 <= %i + %k < 8 else %zero : tensor<8xf32>
      loop.yield %0 : f32
    }
    loop.yield %sum : f32
  }
  func.return %y : tensor<32xf32>
}
