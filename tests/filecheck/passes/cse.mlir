// RUN: dl-opt %s --split-input-file -p cse | filecheck %s

// The later of two equal ops is the earlier one, and what nobody needs goes.
// CHECK-LABEL: func.func @equal
// CHECK-NEXT: %a = math.exp %x : f32
// CHECK-NEXT: %c = arith.addf %a, %a : f32
// CHECK-NEXT: func.return %c : f32
func.func @equal(%x: f32) -> f32 {
  %a = math.exp %x : f32
  %b = math.exp %x : f32
  %unused = math.sin %x : f32
  %c = arith.addf %a, %b : f32
  func.return %c : f32
}

// -----

// Nests that compute the same from the same tensor are one; a nest that reads another tensor is another one, although
// its attributes and operands are equal.
// CHECK-LABEL: func.func @nests
// CHECK-COUNT-2: loop.nest
// CHECK-NOT: loop.nest
// CHECK: func.return %a, %a, %c
func.func @nests(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %a = loop.nest (%i) in [8] -> tensor<8xf32> {
    %0 = loop.load %x[%i] : tensor<8xf32>
    loop.yield %0 : f32
  }
  %b = loop.nest (%i) in [8] -> tensor<8xf32> {
    %0 = loop.load %x[%i] : tensor<8xf32>
    loop.yield %0 : f32
  }
  %c = loop.nest (%i) in [8] -> tensor<8xf32> {
    %0 = loop.load %y[%i] : tensor<8xf32>
    loop.yield %0 : f32
  }
  func.return %a, %b, %c : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}

// -----

// A region sees what is around it, but not what is in another region.
// CHECK-LABEL: func.func @regions
// CHECK: %e = math.exp %s : f32
// CHECK: loop.nest
// CHECK-NOT: math.exp
// CHECK: math.sin
// CHECK: loop.nest
// CHECK-NOT: math.exp
// CHECK: math.sin
func.func @regions(%x: tensor<8xf32>, %s: f32) -> (f32, tensor<8xf32>, tensor<8x1xf32>) {
  %e = math.exp %s : f32
  %a = loop.nest (%i) in [8] -> tensor<8xf32> {
    %0 = math.exp %s : f32
    %1 = math.sin %s : f32
    %2 = arith.addf %0, %1 : f32
    loop.yield %2 : f32
  }
  %b = loop.nest (%i, %j) in [8, 1] -> tensor<8x1xf32> {
    %0 = math.exp %s : f32
    %1 = math.sin %s : f32
    %2 = arith.addf %0, %1 : f32
    loop.yield %2 : f32
  }
  func.return %e, %a, %b : f32, tensor<8xf32>, tensor<8x1xf32>
}

// -----

// Memory may have changed between two equal reads.
// CHECK-LABEL: func.func @memory
// CHECK-NEXT: %a = memref.load
// CHECK-NEXT: %s = arith.addf %a, %a : f32
// CHECK-NEXT: memref.store
// CHECK-NEXT: %c = memref.load
// CHECK-NEXT: %r = arith.addf %s, %c : f32
func.func @memory(%m: memref<8xf32>, %i: index) -> f32 {
  %a = memref.load %m[%i] : memref<8xf32>
  %b = memref.load %m[%i] : memref<8xf32>
  %s = arith.addf %a, %b : f32
  memref.store %s, %m[%i] : memref<8xf32>
  %c = memref.load %m[%i] : memref<8xf32>
  %r = arith.addf %s, %c : f32
  func.return %r : f32
}

// -----

// A stage stays what its staged reduction computes, although a reduction in front of that is equal.
// CHECK-LABEL: func.func @stages
// CHECK-COUNT-3: loop.reduce
// CHECK: loop.yield %{{.*}}, %l : f32, f32
func.func @stages(%x: tensor<8xf32>) -> tensor<1xf32> {
  %y = loop.nest (%i) in [1] -> tensor<1xf32> {
    %s = loop.reduce add (%k) in [8] -> f32 {
      %0 = loop.load %x[%k] : tensor<8xf32>
      loop.yield %0 : f32
    }
    %a, %b = loop.staged_reduce -> f32, f32 stages {
      %m = loop.reduce max (%k) in [8] -> f32 {
        %0 = loop.load %x[%k] : tensor<8xf32>
        loop.yield %0 : f32
      }
      %l = loop.reduce add (%k) in [8] -> f32 {
        %0 = loop.load %x[%k] : tensor<8xf32>
        loop.yield %0 : f32
      }
      loop.yield %m, %l : f32, f32
    } rescale (%om: f32, %ol: f32, %nm: f32, %nl: f32) {
      loop.yield %om, %ol : f32, f32
    }
    %t = arith.addf %a, %b : f32
    %u = arith.addf %s, %t : f32
    loop.yield %u : f32
  }
  func.return %y : tensor<1xf32>
}

// -----

// A tile that was loaded once is not loaded again: it stays in registers.

// CHECK-LABEL: tile.kernel @registers
// CHECK:         scf.for %i = %c0 to %c8 step %c1 {
// CHECK-NEXT:      %a = tile.load %x
// CHECK-NEXT:      %s = tile.reduce add %a over [0]
// CHECK-NEXT:      %r = tile.broadcast %s
// CHECK-NEXT:      %o = arith.divf %a, %r
tile.kernel @registers(%x: memref<8x64xf32>, %y: memref<8x64xf32>) blocks () in [] warps 1 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  scf.for %i = %c0 to %c8 step %c1 {
    %a = tile.load %x[%i, d0] : memref<8x64xf32> -> tensor<64xf32>
    %s = tile.reduce add %a over [0] : tensor<64xf32> -> f32
    %b = tile.load %x[%i, d0] : memref<8x64xf32> -> tensor<64xf32>
    %r = tile.broadcast %s along [0] : f32 -> tensor<64xf32>
    %o = arith.divf %b, %r : tensor<64xf32>
    tile.store %o, %y[%i, d0] : tensor<64xf32>, memref<8x64xf32>
  }
}
