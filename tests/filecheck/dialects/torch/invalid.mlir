// RUN: %diagnostics

// CHECK: torch.add.Tensor: expected one of the arguments self, other, alpha, but got 'scale'
func.func @unknown(%x: tensor<4xf32>) {
  %0 = torch.add.Tensor(self = %x, other = %x, scale = 2) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: torch.add.Tensor: expected an argument 'other', but got none
func.func @missing(%x: tensor<4xf32>) {
  %0 = torch.add.Tensor(self = %x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: torch.softmax.int: expected a int as argument 'dim', but got 1.5
func.func @wrong_kind(%x: tensor<4xf32>) {
  %0 = torch.softmax.int(self = %x, dim = 1.5) : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: torch.relu: expected a Tensor as argument 'self', but got none
func.func @no_tensor() {
  %0 = torch.relu(self = none) : () -> tensor<4xf32>
  func.return
}

// -----

// CHECK: torch.cat: expected a Tensor[] as argument 'tensors', but got a tensor
func.func @no_list(%x: tensor<4xf32>) {
  %0 = torch.cat(tensors = %x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: torch.relu: expected each argument once, but got ['self', 'self']
func.func @twice(%x: tensor<4xf32>) {
  %0 = torch.relu(self = %x, self = %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: expected 2 results of max.dim, but got 1
func.func @results(%x: tensor<4xf32>) {
  %0 = torch.max.dim(self = %x, dim = 0) : (tensor<4xf32>) -> tensor<f32>
  func.return
}

// -----

// CHECK: torch.relu: expected a tensor of a supported data type, but got tensor<4xindex>
func.func @data_type(%x: tensor<4xindex>) {
  %0 = torch.relu(self = %x) : (tensor<4xindex>) -> tensor<4xindex>
  func.return
}

// -----

// CHECK: torch.frobnicate
func.func @no_such_operator(%x: tensor<4xf32>) {
  %0 = torch.frobnicate(self = %x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: expected a int[] as argument 'size', but got a tensor
func.func @size(%x: tensor<4xf32>) {
  %0 = torch.view(self = %x, size = %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: expected a str? as argument 'rounding_mode', but got
func.func @symbol(%x: tensor<4xf32>) {
  %0 = torch.div.Tensor_mode(self = %x, other = %x, rounding_mode = #payload.symbol<n[0:5]>) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: expected a symbol for each ? of a type, but got tensor<?xf32>; list all extents in #payload.extents<...>
func.func @unnamed(%x: tensor<?xf32>) {
  %0 = torch.relu(self = %x) : (tensor<?xf32>) -> tensor<?xf32>
  func.return
}
