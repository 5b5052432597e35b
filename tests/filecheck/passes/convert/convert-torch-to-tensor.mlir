// RUN: dl-opt %s -p convert-torch-to-tensor --split-input-file --verify-diagnostics | filecheck %s

// A contraction is two index maps, a product and a sum; a bias is broadcast by an index map.
// CHECK-LABEL: @relu_matmul
func.func @relu_matmul(%x: tensor<16x64xf32>, %bias: tensor<64xf32>, %w: tensor<64x16xf32>) -> tensor<16x16xf32> {
  // CHECK-NEXT: %0 = tensor.index_map %bias[d1] : tensor<64xf32> -> tensor<16x64xf32>
  // CHECK-NEXT: %1 = arith.addf %x, %0 : tensor<16x64xf32>
  // CHECK-NEXT: %2 = tensor.index_map %1[d0, d2] : tensor<16x64xf32> -> tensor<16x16x64xf32>
  // CHECK-NEXT: %3 = tensor.index_map %w[d2, d1] : tensor<64x16xf32> -> tensor<16x16x64xf32>
  // CHECK-NEXT: %4 = arith.mulf %2, %3 : tensor<16x16x64xf32>
  // CHECK-NEXT: %5 = tensor.reduce add %4 over [2] : tensor<16x16x64xf32> -> tensor<16x16xf32>
  // CHECK-NEXT: %6 = payload.constant 0.0{{[0-9e+]*}} : tensor<16x16xf32>
  // CHECK-NEXT: %7 = arith.maximumf %5, %6 : tensor<16x16xf32>
  // CHECK-NEXT: func.return %7
  %0 = torch.add.Tensor(self = %x, other = %bias) : (tensor<16x64xf32>, tensor<64xf32>) -> tensor<16x64xf32>
  %1 = torch.matmul(self = %0, other = %w) : (tensor<16x64xf32>, tensor<64x16xf32>) -> tensor<16x16xf32>
  %2 = torch.relu(self = %1) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  func.return %2 : tensor<16x16xf32>
}

// -----

// Low precision is storage: cast up before the operator, rounded once after it, nothing in between.
// CHECK-LABEL: @softmax_bf16
func.func @softmax_bf16(%x: tensor<4x8xbf16>) -> tensor<4x8xbf16> {
  // CHECK-NEXT: payload.cast %x : tensor<4x8xbf16> -> tensor<4x8xf32>
  // CHECK-NEXT: tensor.reduce max {{.*}} over [1]
  // CHECK-NOT: bf16
  // CHECK: arith.subf
  // CHECK-NEXT: payload.constant 1.44269502 : tensor<4x8xf32>
  // CHECK-NEXT: arith.mulf
  // CHECK-NEXT: math.exp2 {{.*}} fastmath<afn>
  // CHECK-NEXT: tensor.reduce add
  // CHECK-NEXT: tensor.index_map
  // CHECK-NEXT: arith.divf
  // CHECK-NEXT: payload.cast {{.*}} : tensor<4x8xf32> -> tensor<4x8xbf16>
  %0 = torch.softmax.int(self = %x, dim = -1) : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
  func.return %0 : tensor<4x8xbf16>
}

// -----

// The maximum is that of what is scaled, and the difference is multiplied by the scale and log2(e).
// CHECK-LABEL: @scaled
func.func @scaled(%x: tensor<4x8xf32>, %c: tensor<4x8xi1>) -> tensor<4x8xf32> {
  // CHECK: %[[LOW:[0-9]+]] = payload.constant 0xff800000
  // CHECK: %[[Y:[0-9]+]] = payload.select %c, %[[LOW]], %x
  // CHECK-NEXT: %[[M:[0-9]+]] = tensor.reduce max %[[Y]] over [1]
  // CHECK-NEXT: tensor.index_map %[[M]]
  // CHECK-NEXT: arith.subf %[[Y]]
  // CHECK-NEXT: payload.constant 0.360673755
  // CHECK-NEXT: arith.mulf
  // CHECK-NEXT: math.exp2
  %0 = torch.mul.Scalar(self = %x, other = 0.25) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = torch.masked_fill.Scalar(self = %0, mask = %c, value = -inf) : (tensor<4x8xf32>, tensor<4x8xi1>) -> tensor<4x8xf32>
  %2 = torch.softmax.int(self = %1, dim = -1) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %2 : tensor<4x8xf32>
}

// -----

// A factor above 1 stays where it is: what it makes an infinity would be a number.
// CHECK-LABEL: @scaled_up
func.func @scaled_up(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK: %[[Y:[0-9]+]] = arith.mulf %x
  // CHECK-NEXT: tensor.reduce max %[[Y]] over [1]
  %0 = torch.mul.Scalar(self = %x, other = 2.0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = torch.softmax.int(self = %0, dim = -1) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %1 : tensor<4x8xf32>
}

// -----

// A view is one index map, and one that changes nothing is none.
// CHECK-LABEL: @views
func.func @views(%x: tensor<4x6xf32>) -> tensor<6x4xf32> {
  // CHECK-NEXT: tensor.index_map %x[d1, d0]
  // CHECK-NEXT: func.return
  %0 = torch.slice.Tensor(self = %x, dim = 1, start = 0, end = 9223372036854775807) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %1 = torch.permute(self = %0, dims = [1, 0]) : (tensor<4x6xf32>) -> tensor<6x4xf32>
  %2 = torch.contiguous(self = %1) : (tensor<6x4xf32>) -> tensor<6x4xf32>
  func.return %2 : tensor<6x4xf32>
}

// -----

// Each piece of a cat is read only inside of itself.
// CHECK-LABEL: @cat
func.func @cat(%x: tensor<3xf32>, %y: tensor<2xf32>) -> tensor<5xf32> {
  // CHECK: tensor.index_map %x[d0] where 0 <= d0 < 3
  // CHECK: tensor.index_map %y[d0 - 3] where 0 <= d0 - 3 < 2
  // CHECK: tensor.iota 0
  // CHECK: payload.cmp lt
  // CHECK: payload.select
  %0 = torch.cat(tensors = [%x, %y]) : (tensor<3xf32>, tensor<2xf32>) -> tensor<5xf32>
  func.return %0 : tensor<5xf32>
}

// -----

// CHECK: aten.scaled_dot_product_attention: is_causal: expected a mask or is_causal, but got both
func.func @refused(%q: tensor<1x2x3x4xf32>, %m: tensor<3x3xf32>) -> tensor<1x2x3x4xf32> {
  %0 = torch.scaled_dot_product_attention(query = %q, key = %q, value = %q, attn_mask = %m, is_causal = true) : (tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>, tensor<3x3xf32>) -> tensor<1x2x3x4xf32>
  func.return %0 : tensor<1x2x3x4xf32>
}

// -----

// CHECK: aten.relu: expected shape [5], as declared, but got [4]
func.func @wrong_shape(%x: tensor<4xf32>) -> tensor<5xf32> {
  %0 = torch.relu(self = %x) : (tensor<4xf32>) -> tensor<5xf32>
  func.return %0 : tensor<5xf32>
}

// -----

// Sizes known at run time: a mean divides by one, a row of scores asks where it is, a part is read from the end.
// CHECK-LABEL: @some_size
#n = #payload.symbol<n[1:1001]>
func.func @some_size(%x: tensor<?x4xf32, #payload.extents<#n, 4>>) -> tensor<4xf32> {
  // CHECK: tensor.reduce add %x over [0] : tensor<?x4xf32, #payload.extents<#n, 4>> -> tensor<4xf32>
  // CHECK-NEXT: payload.extent #n : tensor<4xi64>
  // CHECK-NEXT: payload.cast
  // CHECK-NEXT: arith.divf
  %0 = torch.mean.dim(self = %x, dim = [0]) : (tensor<?x4xf32, #payload.extents<#n, 4>>) -> tensor<4xf32>
  // CHECK: tensor.gather %x[%{{.*}}, d1]
  %1 = torch.select.int(self = %x, dim = 0, index = -1) : (tensor<?x4xf32, #payload.extents<#n, 4>>) -> tensor<4xf32>
  // CHECK: tensor.index_map %x[d0, d1 * 2 + d2] : tensor<?x4xf32, #payload.extents<#n, 4>> -> tensor<?x2x2xf32, #payload.extents<#n, 2, 2>>
  %2 = torch.view(self = %x, size = [#n, 2, 2]) : (tensor<?x4xf32, #payload.extents<#n, 4>>) -> tensor<?x2x2xf32, #payload.extents<#n, 2, 2>>
  %3 = torch.add.Tensor(self = %0, other = %1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %3 : tensor<4xf32>
}

// -----

// CHECK: aten.unfold: the size n is known only at run time, which is not supported here
#n = #payload.symbol<n[1:1001]>
func.func @parts(%x: tensor<?xf32, #payload.extents<#n>>) {
  %0 = torch.unfold(self = %x, dimension = 0, size = 2, step = 2) : (tensor<?xf32, #payload.extents<#n>>) -> tensor<5x2xf32>
  func.return
}

// -----

// A power holds its exponent in f32, which rounds this one to 0.5.
// CHECK: @rounded
func.func @rounded(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: math.sqrt %x
  %0 = torch.pow.Tensor_Scalar(self = %x, exponent = 0.5000000001) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}

// -----

// CHECK: aten.sub.Tensor: alpha: expected a number, but got a boolean, which PyTorch refuses
func.func @truth(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = torch.sub.Tensor(self = %x, other = %x, alpha = true) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
