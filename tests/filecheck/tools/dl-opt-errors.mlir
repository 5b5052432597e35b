// RUN: %diagnostics

// Syntax, unknown ops, types, verifiers: one line with a place; the other parts of the file are unaffected.

// CHECK: dl-opt-errors.mlir:7:3: error: unknown operation 'foo.bar'
func.func @unknown(%x: f32) {
  foo.bar %x
  func.return
}

// -----

// CHECK: dl-opt-errors.mlir:15:15: error: the value %nowhere is used, but not defined
func.func @undefined() -> f32 {
  func.return %nowhere : f32
}

// -----

// CHECK: error: func.return: Expected arguments to have the same types as the function output types
func.func @verifier(%x: f32) -> f64 {
  func.return %x : f32
}

// -----

// CHECK: error: operand is used with type f32, but has been previously used or defined with type f64
func.func @types(%x: f32, %y: f64) -> f32 {
  %0 = arith.addf %x, %y : f32
  func.return %0 : f32
}

// -----

// CHECK: dl-opt-errors.mlir:42:16: error: %c is defined in line 39, inside of the region of loop.reduce, and cannot
func.func @region(%x: tensor<9xf32>) -> f32 {
  %0 = loop.nest (%i) in [9] -> tensor<9xf32> {
    %1 = loop.reduce add (%k) in [9] -> f32 {
      %c = loop.load %x[%k] : tensor<9xf32>
      loop.yield %c : f32
    }
    loop.yield %c : f32
  }
  func.return %0 : tensor<9xf32>
}

// -----

// CHECK: error: loop.load: expected the region of loop.nest to end with loop.yield, but this is its last operation
func.func @yield(%x: tensor<9xf32>) -> tensor<9xf32> {
  %0 = loop.nest (%i) in [9] -> tensor<9xf32> {
    %1 = loop.load %x[%i] : tensor<9xf32>
  }
  func.return %0 : tensor<9xf32>
}

// -----

// CHECK: dl-opt-errors.mlir:61:52: error: Expected '->'
func.func @arrow(%x: tensor<9xf32>) -> tensor<9xf32> {
  %0 = tensor.index_map %x[-d0 + 8] : tensor<9xf32> // the type of the result is missing
  func.return %0 : tensor<9xf32>
}

// -----

// CHECK: func.func @fine()
func.func @fine() {
  func.return
}
