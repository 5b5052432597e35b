// RUN: %diagnostics

// CHECK: payload.assert: expected an integer or index to assert, but got f32
%x, %c = "test.op"() : () -> (f32, i1)
%y = payload.assert %x where %c, "a float" : f32

// -----

// CHECK: payload.assert: expected a condition with the container of tensor<4xi64>, but got i1
%x, %c = "test.op"() : () -> (tensor<4xi64>, i1)
%y = "payload.assert"(%x, %c) <{message = "one for all"}> : (tensor<4xi64>, i1) -> tensor<4xi64>

// -----

// CHECK: payload.assert: result 'result' at position 0 does not verify: attribute i64 expected from variable 'T', but got i32
%x, %c = "test.op"() : () -> (i64, i1)
%y = "payload.assert"(%x, %c) <{message = "narrower"}> : (i64, i1) -> i32
