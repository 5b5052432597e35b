// RUN: dl-opt %s -p tensor-to-loop,loop-to-tile,tile-to-kernel | filecheck %s

// Calls that PyTorch computes may be collectives. Equal ones, and one without users, stay, and in their order: all
// processes of a group issue the same collectives.
// CHECK: func.func private @gather
// CHECK-SAME: torch.eager = "_c10d_functional.all_gather_into_tensor", torch.eager_arguments = "%0, 2, '0'"
// CHECK-LABEL: func.func @main(%x: memref<4xf32>, %y: memref<8xf32>, %z: memref<4xf32>
// CHECK: func.call @reduce(%x, %[[A:.*]]) :
// CHECK: func.call @gather(%x, %{{.*}}) :
// CHECK: func.call @reduce(%x, %[[B:.*]]) :
// CHECK: kernel.launch @{{.*}}(%[[A]], %[[B]], %[[SUM:.*]]) :
// CHECK: func.call @gather(%[[SUM]], %y) :
// CHECK: func.call @reduce(%x, %z) :
func.func private @reduce(tensor<4xf32>) -> tensor<4xf32>
  attributes {torch.eager = "_c10d_functional.all_reduce", torch.eager_arguments = "%0, 'sum', '0'"}
func.func private @gather(tensor<4xf32>) -> tensor<8xf32>
  attributes {torch.eager = "_c10d_functional.all_gather_into_tensor", torch.eager_arguments = "%0, 2, '0'"}
func.func @main(%x: tensor<4xf32>) -> (tensor<8xf32>, tensor<4xf32>) {
  %a = func.call @reduce(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %unused = func.call @gather(%x) : (tensor<4xf32>) -> tensor<8xf32>
  %b = func.call @reduce(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %sum = arith.addf %a, %b : tensor<4xf32>
  %y = func.call @gather(%sum) : (tensor<4xf32>) -> tensor<8xf32>
  %z = func.call @reduce(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y, %z : tensor<8xf32>, tensor<4xf32>
}
