// RUN: dl-opt %s -p "plan-unfolding{target=cpu}" --split-input-file | filecheck %s
// RUN: dl-opt %s -p "plan-unfolding{target=sm_90a}" --split-input-file | filecheck %s --check-prefix=GPU

// Large weights of a small image are read in the order in which they are stored, once the windows are unfolded.
// CHECK-LABEL: func.func @main
// CHECK: loop.load %x{{.*}} {unfold} : tensor<512x7x7xf32>
// CHECK-NOT: unfold
// GPU-NOT: unfold
func.func @main(%x: tensor<512x7x7xf32>, %w: tensor<512x512x3x3xf32>) -> tensor<512x7x7xf32> {
  %y = loop.nest (%o, %i, %j) in [512, 7, 7] -> tensor<512x7x7xf32> {
    %zero = payload.constant 0.0 : f32
    %s = loop.reduce add (%k, %r, %s) in [512, 3, 3] -> f32 {
      %a = loop.load %x[%k, %i + %r - 1, %j + %s - 1] where 0 <= %i + %r - 1 < 7 and 0 <= %j + %s - 1 < 7 else %zero : tensor<512x7x7xf32>
      %v = loop.load %w[%o, %k, %r, %s] : tensor<512x512x3x3xf32>
      %p = arith.mulf %a, %v : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<512x7x7xf32>
}

// -----

// Few weights of a large image are packed: windows would be nine times as large as the image.
// CHECK-LABEL: func.func @main
// CHECK-NOT: unfold
func.func @main(%x: tensor<64x56x56xf32>, %w: tensor<64x64x3x3xf32>) -> tensor<64x56x56xf32> {
  %y = loop.nest (%o, %i, %j) in [64, 56, 56] -> tensor<64x56x56xf32> {
    %zero = payload.constant 0.0 : f32
    %s = loop.reduce add (%k, %r, %s) in [64, 3, 3] -> f32 {
      %a = loop.load %x[%k, %i + %r - 1, %j + %s - 1] where 0 <= %i + %r - 1 < 56 and 0 <= %j + %s - 1 < 56 else %zero : tensor<64x56x56xf32>
      %v = loop.load %w[%o, %k, %r, %s] : tensor<64x64x3x3xf32>
      %p = arith.mulf %a, %v : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<64x56x56xf32>
}

// -----

// Weights that are packed once cost nothing.
// CHECK-LABEL: func.func @main
// CHECK-NOT: unfold
func.func @main(%x: tensor<512x7x7xf32>, %w: tensor<512x512x3x3xf32>) -> tensor<512x7x7xf32>
    attributes {constants = array<i64: 1>} {
  %y = loop.nest (%o, %i, %j) in [512, 7, 7] -> tensor<512x7x7xf32> {
    %zero = payload.constant 0.0 : f32
    %s = loop.reduce add (%k, %r, %s) in [512, 3, 3] -> f32 {
      %a = loop.load %x[%k, %i + %r - 1, %j + %s - 1] where 0 <= %i + %r - 1 < 7 and 0 <= %j + %s - 1 < 7 else %zero : tensor<512x7x7xf32>
      %v = loop.load %w[%o, %k, %r, %s] : tensor<512x512x3x3xf32>
      %p = arith.mulf %a, %v : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<512x7x7xf32>
}

// -----

// Unfolded windows of a batch are more than the program may take; cores may take 8 MiB for sums beside its limit.
// CHECK-LABEL: func.func @main
// CHECK-NOT: unfold
func.func @main(%x: tensor<2048x16x16xf32>, %w: tensor<512x2048x3x3xf32>) -> tensor<512x16x16xf32>
    attributes {memory_limit = 524288 : i64} {
  %y = loop.nest (%o, %i, %j) in [512, 16, 16] -> tensor<512x16x16xf32> {
    %zero = payload.constant 0.0 : f32
    %s = loop.reduce add (%k, %r, %s) in [2048, 3, 3] -> f32 {
      %a = loop.load %x[%k, %i + %r - 1, %j + %s - 1] where 0 <= %i + %r - 1 < 16 and 0 <= %j + %s - 1 < 16 else %zero : tensor<2048x16x16xf32>
      %v = loop.load %w[%o, %k, %r, %s] : tensor<512x2048x3x3xf32>
      %p = arith.mulf %a, %v : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<512x16x16xf32>
}
