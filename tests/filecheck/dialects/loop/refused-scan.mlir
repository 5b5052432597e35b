// RUN: %diagnostics

%z, %i = "test.op"() : () -> (f32, index)
// CHECK: loop.scan: expected a scan directly in a nest, along one of the nest's indices, but got one in builtin.module
%s = loop.scan add %z along %i : f32

// -----

%z = "test.op"() : () -> f32
%y = loop.nest (%i) in [4] -> tensor<4xf32> {
  %r = loop.reduce add (%k) in [8] -> f32 {
    // CHECK: loop.scan: expected a scan directly in a nest, along one of the nest's indices, but got one in loop.reduce
    %s = loop.scan add %z along %i : f32
    loop.yield %s : f32
  }
  loop.yield %r : f32
}

// -----

%z = "test.op"() : () -> f32
%y = loop.nest (%i, %j) in [4, 8] -> tensor<4x8xf32> {
  // CHECK: loop.scan: expected all scans of a nest along one index, but got several
  %s = loop.scan add %z along %i : f32
  %t = loop.scan add %s along %j : f32
  loop.yield %t : f32
}

// -----

%z = "test.op"() : () -> f16
%y = loop.nest (%i) in [4] -> tensor<4xf16> {
  // CHECK: loop.scan: expected a type to compute in, but got f16, a storage type; cast to f32 first
  %s = loop.scan add %z along %i : f16
  loop.yield %s : f16
}
