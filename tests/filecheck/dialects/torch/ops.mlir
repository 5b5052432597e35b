// RUN: dl-opt %s | dl-opt | filecheck %s
// RUN: dl-opt %s --print-op-generic | dl-opt | filecheck %s

// Every argument keeps its ATen name and its kind: tensors, lists, data types, integers, floats, truth values, none.
// CHECK-LABEL: @arguments
func.func @arguments(%x: tensor<16x64xf32>, %b: tensor<64xf32>, %i: tensor<5xi64>, %c: tensor<1x1x1xf32>) -> tensor<16x64xf32> {
  // CHECK-NEXT: %0 = torch.add.Tensor(self = %x, other = %b, alpha = 1) : (tensor<16x64xf32>, tensor<64xf32>) -> tensor<16x64xf32>
  %0 = torch.add.Tensor(self = %x, other = %b) : (tensor<16x64xf32>, tensor<64xf32>) -> tensor<16x64xf32>
  // CHECK-NEXT: %1 = torch.cat(tensors = [%0, %0], dim = -1) : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x128xf32>
  %1 = torch.cat(tensors = [%0, %0], dim = -1) : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x128xf32>
  // CHECK-NEXT: %2 = torch._to_copy(self = %1, dtype = bf16, non_blocking = false) : (tensor<16x128xf32>) -> tensor<16x128xbf16>
  %2 = torch._to_copy(self = %1, dtype = bf16) : (tensor<16x128xf32>) -> tensor<16x128xbf16>
  // CHECK-NEXT: %3 = torch.div.Tensor_mode(self = %x, other = %b, rounding_mode = "floor") : (tensor<16x64xf32>, tensor<64xf32>) -> tensor<16x64xf32>
  %3 = torch.div.Tensor_mode(rounding_mode = "floor", self = %x, other = %b) : (tensor<16x64xf32>, tensor<64xf32>) -> tensor<16x64xf32>
  // CHECK-NEXT: %4 = torch.index.Tensor(self = %x, indices = [none, %i]) : (tensor<16x64xf32>, tensor<5xi64>) -> tensor<16x5xf32>
  %4 = torch.index.Tensor(self = %x, indices = [none, %i]) : (tensor<16x64xf32>, tensor<5xi64>) -> tensor<16x5xf32>
  // A lone integer stands for a list of the length that the schema says.
  // CHECK-NEXT: %5 = torch.sum.dim_IntList(self = %x, dim = [1], keepdim = true) : (tensor<16x64xf32>) -> tensor<16x1xf32>
  %5 = torch.sum.dim_IntList(self = %x, dim = 1, keepdim = true) : (tensor<16x64xf32>) -> tensor<16x1xf32>
  // An argument without a default is printed even if it is none.
  // CHECK-NEXT: %6 = torch.convolution(input = %c, weight = %c, bias = none, stride = [1],
  %6 = torch.convolution(input = %c, weight = %c, bias = none, stride = [1], padding = [0], dilation = [1], transposed = false, output_padding = [0], groups = 1) : (tensor<1x1x1xf32>, tensor<1x1x1xf32>) -> tensor<1x1x1xf32>
  func.return %0 : tensor<16x64xf32>
}

// An integer, a float and a truth value are three scalars; floats keep all their digits, -0.0, infinities and NaN.
// CHECK-LABEL: @scalars
func.func @scalars(%x: tensor<4xf32>) {
  // CHECK-NEXT: alpha = true)
  %0 = torch.add.Scalar(self = %x, other = nan, alpha = true) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: other = 2, alpha = 1.0)
  %1 = torch.add.Scalar(self = %x, other = 2, alpha = 1.0) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: min = -0.0, max = inf)
  %2 = torch.clamp(self = %x, min = -0.0, max = inf) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: min = -inf)
  %3 = torch.clamp(self = %x, min = -inf) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: other = -1.2345678901234568e-05)
  %4 = torch.mul.Scalar(self = %x, other = -1.2345678901234568e-05) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: other = 0.1)
  %5 = torch.mul.Scalar(self = %x, other = 0.1) : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// CHECK-LABEL: @several_results
func.func @several_results(%x: tensor<16x64xf32>) {
  // CHECK-NEXT: %0, %1 = torch.sort(self = %x, dim = -1, descending = false) : (tensor<16x64xf32>) -> (tensor<16x64xf32>, tensor<16x64xi64>)
  %0, %1 = torch.sort(self = %x) : (tensor<16x64xf32>) -> (tensor<16x64xf32>, tensor<16x64xi64>)
  // CHECK-NEXT: %values, %indices = torch.max.dim
  %values, %indices = torch.max.dim(self = %x, dim = 1) : (tensor<16x64xf32>) -> (tensor<16xf32>, tensor<16xi64>)
  func.return
}

// CHECK-LABEL: @some_size
func.func @some_size(%x: tensor<?x4xf32, #payload.extents<#payload.symbol<n[1:9]>, 4>>) {
  // CHECK-NEXT: torch.view(self = %x, size = [#n, 2, 2])
  %0 = torch.view(self = %x, size = [#payload.symbol<n[1:9]>, 2, 2]) : (tensor<?x4xf32, #payload.extents<#payload.symbol<n[1:9]>, 4>>) -> tensor<?x2x2xf32, #payload.extents<#payload.symbol<n[1:9]>, 2, 2>>
  func.return
}
