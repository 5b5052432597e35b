// RUN: %diagnostics

%x, %i = "test.op"() : () -> (tensor<4x8xf32>, index)
// CHECK: loop.load: expected a map of 1 dimensions, one for each index, but got 2
%y = "loop.load"(%x, %i) <{map = affine_map<(d0, d1) -> (d0, d1)>, operandSegmentSizes = array<i32: 1, 1, 0, 0>}> : (tensor<4x8xf32>, index) -> f32

// -----

// Indices are values; dimensions by number are those of tiles and tensors.
%x, %i = "test.op"() : () -> (tensor<4x8xf32>, index)
// CHECK: {{:\d+}}:23: error: expected an index such as %i, but got d0
%y = loop.load %x[%i, d0] : tensor<4x8xf32>

// -----

%x, %i = "test.op"() : () -> (tensor<4x8xf32>, index)
// CHECK: {{:\d+}}:23: error: unknown value %n
%y = loop.load %x[%i, %n + 1] : tensor<4x8xf32>

// -----

%x, %i, %v = "test.op"() : () -> (tensor<4x8xf32>, index, f32)
// CHECK: {{:\d+}}:23: error: expected an index, but got %v of type f32
%y = loop.load %x[%i, %v] : tensor<4x8xf32>

// -----

%x, %i, %j = "test.op"() : () -> (tensor<4x8xf32>, index, index)
// CHECK: {{:\d+}}:23: error: expected an affine expression, which multiplies and divides indices by numbers only
%y = loop.load %x[%i, %i * %j] : tensor<4x8xf32>

// -----

%x, %i, %j = "test.op"() : () -> (tensor<4x8xf32>, index, index)
// CHECK: {{:\d+}}:38: error: expected an affine expression, which multiplies and divides indices by numbers only
%y = loop.load %x[%i, %j] where 0 <= 8 floordiv %i < 4 : tensor<4x8xf32>

// -----

%x, %i = "test.op"() : () -> (tensor<4x8xf32>, index)
// CHECK: loop.load: expected 2 coordinates for a source, but got 1
%y = loop.load %x[%i] : tensor<4x8xf32>

// -----

%x, %i, %z = "test.op"() : () -> (tensor<4x8xf32>, index, f32)
// CHECK: loop.load: expected both a domain and a fill value, or neither, but got only a domain
%y = loop.load %x[%i, %i] where 0 <= %i < 4 : tensor<4x8xf32>

// -----

%x, %i = "test.op"() : () -> (tensor<4x8xf32>, index)
// CHECK: loop.load: expected a domain, because a coordinate depends on data, but got none
%y = loop.load %x[symbol(%i), %i] : tensor<4x8xf32>

// -----

%z = "test.op"() : () -> f32
// CHECK: loop.nest: expected results of shape [4, 8], like the extents, but got tensor<4xf32>
%y = loop.nest (%i, %j) in [4, 8] -> tensor<4xf32> {
  loop.yield %z : f32
}

// -----

%z = "test.op"() : () -> f32
// CHECK: loop.nest: expected the body to yield (f64), but got (f32)
%y = loop.nest (%i, %j) in [4, 8] -> tensor<4x8xf64> {
  loop.yield %z : f32
}

// -----

%z = "test.op"() : () -> f32
// CHECK: loop.nest: expected a result map from 2 indices to 1 coordinates, but got (d0, d1) -> (d0, d1)
%y = loop.nest (%i, %j) in [4, 8] to [%i, %j] -> tensor<32xf32> {
  loop.yield %z : f32
}

// -----

%z = "test.op"() : () -> f32
// CHECK: loop.nest: expected a number in mixed radix, such as d0 * 8 + d1 with d1 < 8, in the result map, but got ((d0 * 7) + d1)
%y = loop.nest (%i, %j) in [4, 8] to [%i * 7 + %j] -> tensor<32xf32> {
  loop.yield %z : f32
}

// -----

%z = "test.op"() : () -> f32
// CHECK: loop.nest: expected a number in mixed radix, such as d0 * 8 + d1 with d1 < 8, in the result map, but got (d0 + 1)
%y = loop.nest (%i) in [4] to [%i + 1] -> tensor<4xf32> {
  loop.yield %z : f32
}

// -----

%z = "test.op"() : () -> f32
// CHECK: loop.nest: expected ((d0 * 8) + d1) in the result map to have 40 values, but got 32
%y = loop.nest (%i, %j) in [4, 8] to [%i * 8 + %j] -> tensor<40xf32> {
  loop.yield %z : f32
}

// -----

%z = "test.op"() : () -> f32
// CHECK: loop.nest: expected every index in the result map, but got (d0, d1) -> (d0)
%y = loop.nest (%i, %j) in [4, 8] to [%i] -> tensor<4xf32> {
  loop.yield %z : f32
}

// -----

%z = "test.op"() : () -> f32
// CHECK: loop.nest: expected results of one shape in a nest with a result map, but got tensor<4xf32> and tensor<2x2xf32>
%y, %w = loop.nest (%i) in [4] to [%i] -> tensor<4xf32>, tensor<2x2xf32> {
  loop.yield %z, %z : f32, f32
}

// -----

// CHECK: loop.reduce: expected a type to compute in, but got f16, a storage type; cast to f32 first
%y = loop.reduce add (%k) in [4] -> f16 {
  %z = payload.constant 0.0 : f16
  loop.yield %z : f16
}

// -----

%z = "test.op"() : () -> f32
// CHECK: loop.reduce: expected 2 arguments of type index, one for each extent, but got (index)
%y = "loop.reduce"() <{kind = #tensor<kind add>, extents = [#builtin.int<4>, #builtin.int<8>]}> ({
^bb0(%k: index):
  loop.yield %z : f32
}) : () -> f32

// -----

%z = "test.op"() : () -> f32
// CHECK: loop.staged_reduce: expected equal extents of all stages, but got [36] and [37]
%m, %l = loop.staged_reduce -> f32, f32 stages {
  %m0 = loop.reduce max (%k) in [37] -> f32 {
    loop.yield %z : f32
  }
  %l0 = loop.reduce add (%k) in [36] -> f32 {
    loop.yield %z : f32
  }
  loop.yield %m0, %l0 : f32, f32
} rescale (%om: f32, %ol: f32, %nm: f32, %nl: f32) {
  loop.yield %om, %ol : f32, f32
}

// -----

%z = "test.op"() : () -> f32
// CHECK: loop.staged_reduce: expected the stages to yield their reductions, each once and in order, but got other values
%m = loop.staged_reduce -> f32 stages {
  %m0 = loop.reduce max (%k) in [37] -> f32 {
    loop.yield %z : f32
  }
  loop.yield %z : f32
} rescale (%om: f32, %nm: f32) {
  loop.yield %om : f32
}

// -----

%z = "test.op"() : () -> f32
// CHECK: loop.staged_reduce: expected all results twice as arguments of the rescaling: the old ones, then the new ones, but got (f32)
%m = loop.staged_reduce -> f32 stages {
  %m0 = loop.reduce max (%k) in [37] -> f32 {
    loop.yield %z : f32
  }
  loop.yield %m0 : f32
} rescale (%om: f32) {
  loop.yield %om : f32
}

// -----

%z = "test.op"() : () -> f32
// CHECK: loop.staged_reduce: expected the rescaling to yield (f32), but got (i1)
%m = loop.staged_reduce -> f32 stages {
  %m0 = loop.reduce max (%k) in [37] -> f32 {
    loop.yield %z : f32
  }
  loop.yield %m0 : f32
} rescale (%om: f32, %nm: f32) {
  %t = payload.constant true : i1
  loop.yield %t : i1
}

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: loop.reshape: expected a result with the number and type of elements of tensor<4x8xf32>, but got tensor<33xf32>
%y = loop.reshape %x : tensor<4x8xf32> -> tensor<33xf32>

// -----

%x = "test.op"() : () -> tensor<4x8xf32>
// CHECK: loop.reshape: expected a result with the number and type of elements of tensor<4x8xf32>, but got tensor<32xf16>
%y = loop.reshape %x : tensor<4x8xf32> -> tensor<32xf16>

// -----

%x = "test.op"() : () -> tensor<?x8xf32, #payload.extents<#payload.symbol<s0[1:9]>, 8>>
// CHECK: loop.reshape: expected a result with the number and type of elements of tensor<?x8xf32, #payload.extents<#payload.symbol<s0[1:9]>, 8>>, but got tensor<?xf32, #payload.extents<#payload.symbol<s0[1:9]>>>
%y = loop.reshape %x : tensor<?x8xf32, #payload.extents<#payload.symbol<s0[1:9]>, 8>> -> tensor<?xf32, #payload.extents<#payload.symbol<s0[1:9]>>>
