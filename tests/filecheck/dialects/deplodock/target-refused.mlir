// RUN: dl-opt %s --split-input-file --verify-diagnostics -p kernel-allocate-shared | filecheck %s

// CHECK: error: target: unknown target 'sm_91a', did you mean sm_90a? (known: sm_80, sm_89, sm_90a, sm_120, cpu)
builtin.module attributes {deplodock.target = #deplodock.target<sm_91a>} {}

// -----

// CHECK: error: target: unknown or repeated number 'rates.speed'
builtin.module attributes {deplodock.target = #deplodock.target<sm_90a, rates.speed = 3.0e12 B_per_s>} {}

// -----

// A GPU has no cores.
// CHECK: error: target: unknown or repeated number 'core.l1'
builtin.module attributes {deplodock.target = #deplodock.target<sm_90a, core.l1 = 49152 B>} {}

// -----

// CHECK: error: target: expected rates.memory in B_per_s, but got no unit
builtin.module attributes {deplodock.target = #deplodock.target<sm_90a, rates.memory = 3.0e12>} {}

// -----

// CHECK: error: target: expected rates.latency in s, but got us
builtin.module attributes {deplodock.target = #deplodock.target<sm_90a, rates.latency = 0.65 us>} {}

// -----

// CHECK: error: target: rates.memory is -1.0, which is no amount
builtin.module attributes {deplodock.target = #deplodock.target<sm_90a, rates.memory = -1.0 B_per_s>} {}

// -----

// CHECK: error: target: sms is 0
builtin.module attributes {deplodock.target = #deplodock.target<sm_90a, sms = 0>} {}

// -----

// Another attribute of that name is no target.
// CHECK: expected #deplodock.target<...>, but got "sm_90a"
builtin.module attributes {deplodock.target = "sm_90a"} { kernel.func @k() grid [1] warps 1 {} }
