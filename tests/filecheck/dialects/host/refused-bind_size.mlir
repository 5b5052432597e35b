// RUN: %diagnostics

%c = "test.op"() : () -> tensor<1xi64>
// CHECK: host.bind_size: expected an i64 tensor without dimensions, but got tensor<1xi64>
host.bind_size %c as #payload.symbol<u0[0:9]> : tensor<1xi64>

// -----

%c = "test.op"() : () -> tensor<i32>
// CHECK: host.bind_size: expected an i64 tensor without dimensions, but got tensor<i32>
host.bind_size %c as #payload.symbol<u0[0:9]> : tensor<i32>

// -----

func.func @layer(%c: tensor<i64>) {
  // CHECK: host.bind_size: expected to be in the body of @main, whose sizes it binds
  host.bind_size %c as #payload.symbol<u0[0:9]> : tensor<i64>
  func.return
}

// -----

func.func @main(%c: tensor<i64>) {
  // CHECK: tensor.iota: mentions the size u0 before it is bound
  %r = tensor.iota 0 : tensor<?xi64, #payload.extents<#payload.symbol<u0[0:9]>>>
  host.bind_size %c as #payload.symbol<u0[0:9]> : tensor<i64>
  func.return
}

// -----

func.func @main(%c: tensor<i64>)
    attributes {deplodock.sizes = [#payload.derived<#payload.symbol<n[1:10]> = affine_map<()[s0] -> (s0 + 1)>[#payload.symbol<u0[0:9]>]>]} {
  // CHECK: payload.extent: mentions the size n before it is bound
  %r = payload.extent #payload.symbol<n[1:10]> : tensor<i64>
  host.bind_size %c as #payload.symbol<u0[0:9]> : tensor<i64>
  func.return
}

// -----

func.func private @layer() -> tensor<i64> {
  %r = payload.extent #payload.symbol<u0[0:9]> : tensor<i64>
  func.return %r : tensor<i64>
}
func.func @main(%c: tensor<i64>) {
  // CHECK: func.call: mentions the size u0 before it is bound
  %r = func.call @layer() : () -> tensor<i64>
  host.bind_size %c as #payload.symbol<u0[0:9]> : tensor<i64>
  func.return
}

// -----

func.func @main(%c: tensor<i64>) {
  host.bind_size %c as #payload.symbol<u0[0:9]> : tensor<i64>
  // CHECK: host.bind_size: the size u0 is bound twice
  host.bind_size %c as #payload.symbol<u0[0:9]> : tensor<i64>
  func.return
}
