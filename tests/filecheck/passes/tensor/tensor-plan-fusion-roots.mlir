// RUN: dl-opt %s --remarks -p 'tensor-plan-fusion{roots=%1,%y}' | filecheck %s
// RUN: dl-opt %s --remarks -p 'tensor-plan-fusion{roots=1,2}' | filecheck %s
// RUN: dl-opt %s --verify-diagnostics -p 'tensor-plan-fusion{roots=%9}' | filecheck %s --check-prefix UNKNOWN
// RUN: dl-opt %s --verify-diagnostics -p 'tensor-plan-fusion{roots=7}' | filecheck %s --check-prefix BEYOND

// A value is named as it is printed, or by its position. A remark says what takes more memory than the limit: values
// that are returned do not count.

// CHECK: remark: [tensor-plan-fusion] func.func: roots keep %1 (8192 bytes) in memory; memory_limit is 4096 bytes
// CHECK: %0 = math.sin %x :
// CHECK: %1 = math.exp %0 {fuse.root} :
// CHECK: %y = math.tanh %1 {fuse.root} :
// UNKNOWN: expected one of the values %0, %1, %y, but got %9
// BEYOND: there is no operation 7 with a result to keep
func.func @main(%x: tensor<2048xf32>) -> tensor<2048xf32> attributes {memory_limit = 4096 : i64} {
  %0 = math.sin %x : tensor<2048xf32>
  %1 = math.exp %0 : tensor<2048xf32>
  %y = math.tanh %1 : tensor<2048xf32>
  func.return %y : tensor<2048xf32>
}
