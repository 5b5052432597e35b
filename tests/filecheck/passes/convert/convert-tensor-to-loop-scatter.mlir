// RUN: dl-opt %s --split-input-file -p tensor-plan-fusion,convert-tensor-to-loop | filecheck %s

// The values and the index of a scatter are results of one nest, which computes what is cheap; a sum is kept in memory.
// What it starts from is a nest of its own, a copy if that is an argument.
// CHECK-LABEL: func.func @main
// CHECK:         %s = loop.nest (%i_1) in [50] -> tensor<50xf32> {
// CHECK:         %w, %j = loop.nest (%{{.*}}) in [50] -> tensor<50xf32>, tensor<50xi64> {
// CHECK-NEXT:      loop.load %s
// CHECK-NEXT:      arith.mulf
// CHECK-NEXT:      loop.load %i
// CHECK-NEXT:      payload.constant 1
// CHECK-NEXT:      arith.addi
// CHECK-NEXT:      loop.yield %{{.*}}, %{{.*}} : f32, i64
// CHECK-NEXT:    }
// CHECK-NEXT:    %[[X:.*]] = loop.nest (%{{.*}}) in [10] -> tensor<10xf32> {
// CHECK-NEXT:      loop.load %x
// CHECK-NEXT:      loop.yield
// CHECK-NEXT:    }
// CHECK-NEXT:    %y = tensor.scatter add %w, %[[X]][%j]
// CHECK-NEXT:    func.return %y
func.func @main(%x: tensor<10xf32>, %v: tensor<50x8xf32>, %i: tensor<50xi64>) -> tensor<10xf32> {
  %s = tensor.reduce add %v over [1] : tensor<50x8xf32> -> tensor<50xf32>
  %w = arith.mulf %s, %s : tensor<50xf32>
  %c = payload.constant 1 : tensor<50xi64>
  %j = arith.addi %i, %c : tensor<50xi64>
  %y = tensor.scatter add %w, %x[%j] : tensor<50xf32>, tensor<10xf32>
  func.return %y : tensor<10xf32>
}
