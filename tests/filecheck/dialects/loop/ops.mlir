// RUN: %roundtrip

%x, %t, %zero, %s = "test.op"() : () -> (tensor<16x64xf32>, tensor<100x8xf32>, f32, index)

// CHECK: %y = loop.nest (%i, %j) in [16, 16] -> tensor<16x16xf32> attributes {note = "kept"} {
%y = loop.nest (%i, %j) in [16, 16] -> tensor<16x16xf32> attributes {note = "kept"} {
  // CHECK-NEXT: %acc = loop.reduce add (%k) in [64] -> f32 attributes {note = "kept"} {
  %acc = loop.reduce add (%k) in [64] -> f32 attributes {note = "kept"} {
    // CHECK-NEXT: %a = loop.load %x[%i, %k] : tensor<16x64xf32>
    %a = loop.load %x[%i, %k] : tensor<16x64xf32>
    // CHECK-NEXT: %b = loop.load %t[symbol(%s), %j] where 0 <= symbol(%s) < 100 and 0 <= %j < 8 else %zero : tensor<100x8xf32>
    %b = loop.load %t[symbol(%s), %j] where 0 <= symbol(%s) < 100 and 0 <= %j < 8 else %zero : tensor<100x8xf32>
    %p = arith.mulf %a, %b : f32
    // CHECK: loop.yield %p : f32
    loop.yield %p : f32
  }
  loop.yield %acc : f32
}

// The same elements in another shape.
// CHECK: loop.reshape %x : tensor<16x64xf32> -> tensor<4x256xf32>
%r = loop.reshape %x : tensor<16x64xf32> -> tensor<4x256xf32>

// Two results, split indices, and a result of rank 0.
// CHECK: %u, %v = loop.nest (%io, %ii) in [4, 16] to [%io * 16 + %ii] -> tensor<64xf32>, tensor<64xi1> {
%u, %v = loop.nest (%io, %ii) in [4, 16] to [%io * 16 + %ii] -> tensor<64xf32>, tensor<64xi1> {
  %c = payload.constant true : i1
  loop.yield %zero, %c : f32, i1
}
// CHECK: %w = loop.nest () in [] -> tensor<f32> {
%w = loop.nest () in [] -> tensor<f32> {
  loop.yield %zero : f32
}

// CHECK: %m, %l = loop.staged_reduce -> f32, f32 stages {
%m, %l = loop.staged_reduce -> f32, f32 stages {
  %m0 = loop.reduce max (%k) in [37] -> f32 {
    loop.yield %zero : f32
  }
  %l0 = loop.reduce add (%k) in [37] -> f32 {
    loop.yield %m0 : f32
  }
  // CHECK: loop.yield %m0, %l0 : f32, f32
  // CHECK-NEXT: } rescale (%om: f32, %ol: f32, %nm: f32, %nl: f32) {
  loop.yield %m0, %l0 : f32, f32
} rescale (%om: f32, %ol: f32, %nm: f32, %nl: f32) {
  // CHECK-NEXT: loop.yield %om, %ol : f32, f32
  loop.yield %om, %ol : f32, f32
}
