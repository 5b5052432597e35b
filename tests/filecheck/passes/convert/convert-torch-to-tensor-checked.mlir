// RUN: dl-opt %s -p 'convert-torch-to-tensor{checked}' --split-input-file | filecheck %s
// RUN: dl-opt %s -p 'default{checked=true}' --split-input-file | filecheck %s --check-prefix=KERNEL

// What an operator asks of its indices is asserted of every one of them: here none may be negative.
// CHECK-LABEL: @main(
// CHECK-NEXT: %[[N:.*]] = payload.constant 100 : tensor<5xi64>
// CHECK-NEXT: %[[ZERO:.*]] = payload.constant 0 : tensor<5xi64>
// CHECK-NEXT: %[[LOW:.*]] = payload.cmp ge %i, %[[ZERO]] : tensor<5xi64>
// CHECK-NEXT: %[[HIGH:.*]] = payload.cmp lt %i, %[[N]] : tensor<5xi64>
// CHECK-NEXT: %[[LEGAL:.*]] = arith.andi %[[LOW]], %[[HIGH]] : tensor<5xi1>
// CHECK-NEXT: %[[I:.*]] = payload.assert %i where %[[LEGAL]], "aten.embedding: an index is outside [0, 100)" at "{{.*}}" : tensor<5xi64>
// CHECK-NEXT: tensor.index_map %[[I]]
// CHECK-NEXT: tensor.gather
// KERNEL: payload.assert %{{.*}} where %{{.*}}, "aten.embedding: an index is outside [0, 100)" at "{{.*}}" : vector<
func.func @main(%table: tensor<100x8xf32>, %i: tensor<5xi64>) -> tensor<5x8xf32> {
  %0 = torch.embedding(weight = %table, indices = %i) : (tensor<100x8xf32>, tensor<5xi64>) -> tensor<5x8xf32>
  func.return %0 : tensor<5x8xf32>
}

// -----

// Here they count from the end, in a size that is known at run time.
// CHECK: %[[S:.*]] = payload.extent #n : tensor<5xi64>
// CHECK: %[[LEAST:.*]] = arith.subi %{{.*}}, %[[S]] : tensor<5xi64>
// CHECK: payload.cmp ge %i, %[[LEAST]] : tensor<5xi64>
// CHECK: payload.assert %i where %{{.*}}, "aten.index.Tensor: an index is outside [-n, n)" at "model.py:7" : tensor<5xi64>
// KERNEL: payload.assert
#n = #payload.symbol<n[1:1001]>
func.func @main(%table: tensor<?x8xf32, #payload.extents<#n, 8>>, %i: tensor<5xi64>) -> tensor<5x8xf32> {
  %0 = torch.index.Tensor(self = %table, indices = [%i]) : (tensor<?x8xf32, #payload.extents<#n, 8>>, tensor<5xi64>) -> tensor<5x8xf32> loc("src/model.py":7:3)
  func.return %0 : tensor<5x8xf32>
}
