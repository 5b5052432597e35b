// RUN: dl-opt %s -p host-mark-constants --split-input-file --verify-diagnostics | filecheck %s

// What reads constants is constant, and what reads only what that gave; not what reads an argument, and no result.
// CHECK-LABEL: func.func @main(
// CHECK: kernel.launch @double(%w, %a) {constant}
// CHECK-NEXT: kernel.launch @double(%a, %b) {constant}
// CHECK-NEXT: kernel.launch @double(%x, %c) :
// CHECK-NEXT: kernel.launch @add(%c, %b, %y) :
// CHECK-NEXT: kernel.launch @double(%w, %z) :
kernel.func @double(%in: memref<1xf32>, %out: memref<1xf32>) grid [1] warps 1 {
  %i = payload.constant 0 : index
  %v = kernel.load %in[%i] : memref<1xf32> -> vector<1xf32>
  %r = arith.addf %v, %v : vector<1xf32>
  kernel.store %r, %out[%i] : memref<1xf32>, vector<1xf32>
}
kernel.func @add(%l: memref<1xf32>, %r: memref<1xf32>, %out: memref<1xf32>) grid [1] warps 1 {
  %i = payload.constant 0 : index
  %v = kernel.load %l[%i] : memref<1xf32> -> vector<1xf32>
  %w = kernel.load %r[%i] : memref<1xf32> -> vector<1xf32>
  %s = arith.addf %v, %w : vector<1xf32>
  kernel.store %s, %out[%i] : memref<1xf32>, vector<1xf32>
}
func.func @main(%x: memref<1xf32>, %w: memref<1xf32>, %y: memref<1xf32>, %z: memref<1xf32>)
    attributes {constants = array<i64: 1>} {
  %a = kernel.alloc : memref<1xf32>
  %b = kernel.alloc : memref<1xf32>
  %c = kernel.alloc : memref<1xf32>
  kernel.launch @double(%w, %a) : memref<1xf32>, memref<1xf32>
  kernel.launch @double(%a, %b) : memref<1xf32>, memref<1xf32>
  kernel.launch @double(%x, %c) : memref<1xf32>, memref<1xf32>
  kernel.launch @add(%c, %b, %y) : memref<1xf32>, memref<1xf32>, memref<1xf32>
  kernel.launch @double(%w, %z) : memref<1xf32>, memref<1xf32>
  func.return
}

// -----

// Not constant: what is written again by a launch that is not, what a call of PyTorch uses, and what computes with a
// size that is known only at a call.
// CHECK-LABEL: func.func @main(
// CHECK-NOT: {constant}
kernel.func @double(%in: memref<1xf32>, %out: memref<1xf32>) grid [1] warps 1 {
  %i = payload.constant 0 : index
  %v = kernel.load %in[%i] : memref<1xf32> -> vector<1xf32>
  %r = arith.addf %v, %v : vector<1xf32>
  kernel.store %r, %out[%i] : memref<1xf32>, vector<1xf32>
}
kernel.func @count(%in: memref<1xf32>, %out: memref<1xi64>) grid [1] warps 1 {
  %i = payload.constant 0 : index
  %n = payload.extent #payload.symbol<s0[1:1001]> : index
  %c = kernel.indices %n steps [] : vector<1xindex>
  %m = payload.cast %c : vector<1xindex> -> vector<1xi64>
  kernel.store %m, %out[%i] : memref<1xi64>, vector<1xi64>
}
func.func private @inverse(memref<1xf32>, memref<1xf32>) attributes {torch.eager = "aten.inverse", torch.eager_results = 1 : i64}
func.func @main(%x: memref<1xf32>, %w: memref<1xf32>, %y: memref<1xf32>) attributes {constants = array<i64: 1>} {
  %again = kernel.alloc : memref<1xf32>
  kernel.launch @double(%w, %again) : memref<1xf32>, memref<1xf32>
  kernel.launch @double(%x, %again) : memref<1xf32>, memref<1xf32>
  %given = kernel.alloc : memref<1xf32>
  kernel.launch @double(%w, %given) : memref<1xf32>, memref<1xf32>
  func.call @inverse(%given, %y) : (memref<1xf32>, memref<1xf32>) -> ()
  %counted = kernel.alloc : memref<1xi64>
  kernel.launch @count(%w, %counted) : memref<1xf32>, memref<1xi64>
  func.return
}

// -----

// expected-error @+1 {{expected positions of arguments in constants, but got array<i64: 1>}}
func.func @main(%x: memref<1xf32>) attributes {constants = array<i64: 1>} {
  func.return
}
