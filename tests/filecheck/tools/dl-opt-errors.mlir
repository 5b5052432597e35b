// RUN: %diagnostics

// Syntax, unknown ops, types, verifiers: one line with a place; the other parts of the file are unaffected.

// CHECK: dl-opt-errors.mlir:7:3: error: unknown operation 'foo.bar'
func.func @unknown(%x: f32) {
  foo.bar %x
  func.return
}

// -----

// CHECK: dl-opt-errors.mlir:15:15: error: values used but not defined: {{\[}}%nowhere{{\]}}
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

// CHECK: func.func @fine()
func.func @fine() {
  func.return
}
