// RUN: dl-opt %s -p "loop-fuse-siblings,cse" --split-input-file | filecheck %s

// Both sum over rows of %x: one nest, in which %x is read once in each of the two sums.
// CHECK-LABEL: func.func @projections
// CHECK-NEXT: %a, %b = loop.nest (%i, %j) in [8, 16] -> tensor<8x16xf32>, tensor<8x16xf32> {
// CHECK-COUNT-2: loop.reduce
// CHECK: loop.yield %{{.*}}, %{{.*}} : f32, f32
// CHECK-NEXT: }
// CHECK-NEXT: func.return %a, %b
func.func @projections(%x: tensor<8x64xf32>, %w: tensor<16x64xf32>, %v: tensor<16x64xf32>)
    -> (tensor<8x16xf32>, tensor<8x16xf32>) {
  %a = loop.nest (%i, %j) in [8, 16] -> tensor<8x16xf32> {
    %s = loop.reduce add (%k) in [64] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<8x64xf32>
      %1 = loop.load %w[%j, %k] : tensor<16x64xf32>
      %2 = arith.mulf %0, %1 : f32
      loop.yield %2 : f32
    }
    loop.yield %s : f32
  }
  %b = loop.nest (%i, %j) in [8, 16] -> tensor<8x16xf32> {
    %s = loop.reduce add (%k) in [64] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<8x64xf32>
      %1 = loop.load %v[%j, %k] : tensor<16x64xf32>
      %2 = arith.mulf %0, %1 : f32
      loop.yield %2 : f32
    }
    loop.yield %s : f32
  }
  func.return %a, %b : tensor<8x16xf32>, tensor<8x16xf32>
}

// -----

// The second needs the first, through the nest in between; the last reads nothing in common.
// CHECK-LABEL: func.func @apart
// CHECK-COUNT-4: loop.nest {{.*}} -> tensor<8xf32> {
func.func @apart(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %a = loop.nest (%i) in [8] -> tensor<8xf32> {
    %0 = loop.load %x[%i] : tensor<8xf32>
    %1 = arith.negf %0 : f32
    loop.yield %1 : f32
  }
  %b = loop.nest (%i) in [8] -> tensor<8xf32> {
    %0 = loop.load %a[7 - %i] : tensor<8xf32>
    loop.yield %0 : f32
  }
  %c = loop.nest (%i) in [8] -> tensor<8xf32> {
    %0 = loop.load %x[%i] : tensor<8xf32>
    %1 = loop.load %b[%i] : tensor<8xf32>
    %2 = arith.addf %0, %1 : f32
    loop.yield %2 : f32
  }
  %d = loop.nest (%i) in [8] -> tensor<8xf32> {
    %0 = loop.load %y[%i] : tensor<8xf32>
    loop.yield %0 : f32
  }
  func.return %c, %d : tensor<8xf32>, tensor<8xf32>
}

// -----

// A third sum would be one too many for one nest.
// CHECK-LABEL: func.func @three
// CHECK: loop.nest {{.*}} -> tensor<8xf32>, tensor<8xf32> {
// CHECK: loop.nest {{.*}} -> tensor<8xf32> {
func.func @three(%x: tensor<8x64xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %a = loop.nest (%i) in [8] -> tensor<8xf32> {
    %s = loop.reduce add (%k) in [64] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<8x64xf32>
      loop.yield %0 : f32
    }
    loop.yield %s : f32
  }
  %b = loop.nest (%i) in [8] -> tensor<8xf32> {
    %s = loop.reduce max (%k) in [64] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<8x64xf32>
      loop.yield %0 : f32
    }
    loop.yield %s : f32
  }
  %c = loop.nest (%i) in [8] -> tensor<8xf32> {
    %s = loop.reduce mul (%k) in [64] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<8x64xf32>
      loop.yield %0 : f32
    }
    loop.yield %s : f32
  }
  func.return %a, %b, %c : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}

// -----

// Each has two sums, but one of them is the same: three are left, two of them side by side.
// CHECK-LABEL: func.func @normalized
// CHECK-NEXT: %a, %b = loop.nest (%i, %j) in [8, 16] -> tensor<8x16xf32>, tensor<8x16xf32> {
// CHECK-NEXT: %[[S:.*]] = loop.reduce add
// CHECK: math.rsqrt %[[S]]
// CHECK-NOT: math.rsqrt
// CHECK-COUNT-2: loop.reduce add
// CHECK-NOT: loop.reduce
// CHECK: func.return %a, %b
func.func @normalized(%x: tensor<8x64xf32>, %w: tensor<16x64xf32>, %v: tensor<16x64xf32>)
    -> (tensor<8x16xf32>, tensor<8x16xf32>) {
  %a = loop.nest (%i, %j) in [8, 16] -> tensor<8x16xf32> {
    %n = loop.reduce add (%k) in [64] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<8x64xf32>
      %1 = arith.mulf %0, %0 : f32
      loop.yield %1 : f32
    }
    %r = math.rsqrt %n : f32
    %s = loop.reduce add (%k) in [64] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<8x64xf32>
      %1 = loop.load %w[%j, %k] : tensor<16x64xf32>
      %2 = arith.mulf %0, %r : f32
      %3 = arith.mulf %2, %1 : f32
      loop.yield %3 : f32
    }
    loop.yield %s : f32
  }
  %b = loop.nest (%i, %j) in [8, 16] -> tensor<8x16xf32> {
    %n = loop.reduce add (%k) in [64] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<8x64xf32>
      %1 = arith.mulf %0, %0 : f32
      loop.yield %1 : f32
    }
    %r = math.rsqrt %n : f32
    %s = loop.reduce add (%k) in [64] -> f32 {
      %0 = loop.load %x[%i, %k] : tensor<8x64xf32>
      %1 = loop.load %v[%j, %k] : tensor<16x64xf32>
      %2 = arith.mulf %0, %r : f32
      %3 = arith.mulf %2, %1 : f32
      loop.yield %3 : f32
    }
    loop.yield %s : f32
  }
  func.return %a, %b : tensor<8x16xf32>, tensor<8x16xf32>
}
