// RUN: dl-opt %s -p kernel-simplify-indices --split-input-file --allow-unregistered-dialect | filecheck %s

// Division and remainder by what the ranges know; units, zeros and powers of two.
// CHECK-LABEL: @divisions
// CHECK-NEXT: %lane = kernel.id lane
// CHECK-NEXT: %warp = kernel.id warp
// CHECK-NEXT: "test.use"(%warp, %lane, %lane, %lane, %warp, %lane) : (index, index, index, index, index, index) -> ()
kernel.func @divisions(%x: memref<4xf32>) grid [5] warps 4 {
  %lane = kernel.id lane
  %warp = kernel.id warp
  %block = kernel.id block
  %lane2 = kernel.id lane
  %0 = payload.constant 0 : index
  %1 = payload.constant 1 : index
  %5 = payload.constant 5 : index
  %31 = payload.constant 31 : index
  %32 = payload.constant 32 : index
  %w = arith.muli %warp, %32 : index
  %t = arith.addi %w, %lane : index
  %q = arith.divsi %t, %32 : index
  %r = arith.remsi %t, %32 : index
  %m = arith.andi %t, %31 : index
  %l1 = arith.muli %lane2, %1 : index
  %l2 = arith.addi %l1, %0 : index
  %s = arith.shrui %t, %5 : index
  %n = arith.minsi %lane, %31 : index
  "test.use"(%q, %r, %m, %l2, %s, %n) : (index, index, index, index, index, index) -> ()
}

// -----

// What the ranges do not decide stays: a lane is not below 16, and a number that may be negative is not divided.
// CHECK-LABEL: @kept
// CHECK: %q = arith.divsi %lane, %c16
// CHECK: %r = arith.remsi %d, %c32
kernel.func @kept(%x: memref<4xf32>) grid [5] warps 4 {
  %lane = kernel.id lane
  %c16 = payload.constant 16 : index
  %c32 = payload.constant 32 : index
  %q = arith.divsi %lane, %c16 : index
  %d = arith.subi %lane, %c16 : index
  %r = arith.remsi %d, %c32 : index
  "test.use"(%q, %r) : (index, index) -> ()
}

// -----

// Rounding toward zero can not drop multiples from what may be negative; the low bits of a number can.
// CHECK-LABEL: @negative
// CHECK: %q = arith.divsi %a, %c32
// CHECK: %r = arith.remsi %a, %c32
// CHECK: "test.use"(%q, %r, %lane) : (index, index, index) -> ()
kernel.func @negative(%x: memref<4xf32>) grid [5] warps 4 {
  %lane = kernel.id lane
  %block = kernel.id block
  %c2 = payload.constant 2 : index
  %c31 = payload.constant 31 : index
  %c32 = payload.constant 32 : index
  %b = arith.subi %block, %c2 : index
  %s = arith.muli %b, %c32 : index
  %a = arith.addi %s, %lane : index
  %q = arith.divsi %a, %c32 : index
  %r = arith.remsi %a, %c32 : index
  %m = arith.andi %a, %c31 : index
  "test.use"(%q, %r, %m) : (index, index, index) -> ()
}

// -----

// Constants meet across sums and products.
// CHECK-LABEL: @sums
// CHECK: [[SIX:%.*]] = payload.constant 6 : index
// CHECK-NEXT: [[P:%.*]] = arith.muli %lane, [[SIX]]
// CHECK-NEXT: [[TEN:%.*]] = payload.constant 10 : index
// CHECK-NEXT: [[S:%.*]] = arith.addi [[P]], [[TEN]]
// CHECK: "test.use"([[S]], [[Z:%.*]]) : (index, index) -> ()
kernel.func @sums(%x: memref<4xf32>) grid [5] warps 4 {
  %lane = kernel.id lane
  %c2 = payload.constant 2 : index
  %c3 = payload.constant 3 : index
  %c4 = payload.constant 4 : index
  %a = arith.muli %lane, %c2 : index
  %b = arith.addi %a, %c2 : index
  %c = arith.muli %b, %c3 : index
  %d = arith.addi %c, %c4 : index
  %z = arith.subi %lane, %lane : index
  "test.use"(%d, %z) : (index, index) -> ()
}

// -----

// Loop counters have ranges too: 0, 8, ..., 56.
// CHECK-LABEL: @counter
// CHECK: "test.use"(%k) : (index) -> ()
// CHECK-NEXT: [[Y:%.*]] = payload.constant true
// CHECK-NEXT: "test.use"([[Y]]) : (i1) -> ()
kernel.func @counter(%x: memref<4xf32>) grid [5] warps 4 {
  %c0 = payload.constant 0 : index
  %c8 = payload.constant 8 : index
  %c57 = payload.constant 57 : index
  %c60 = payload.constant 60 : index
  scf.for %k = %c0 to %c60 step %c8 {
    %r = arith.remsi %k, %c57 : index
    "test.use"(%r) : (index) -> ()
    %y = payload.cmp lt %k, %c57 : index
    "test.use"(%y) : (i1) -> ()
  }
}

// -----

// Checks that always hold disappear, the fill value with the last of them; others stay.
// CHECK-LABEL: @checks
// CHECK: %a = kernel.load %x[%row] regs {{\[\[}}32]] : memref<64xf32> (index) -> vector<2xf32>
// CHECK-NEXT: %b = kernel.load %x[%row] regs {{\[\[}}32]] where (%row) steps {{\[\[}}32]] in [0:63] else %f
// CHECK-NEXT: kernel.store %b, %x[%row] regs {{\[\[}}32]] : memref<64xf32> (index), vector<2xf32>
kernel.func @checks(%x: memref<64xf32>) grid [5] warps 4 {
  %row = kernel.id lane
  %f = payload.constant 0.0 : f32
  %a = kernel.load %x[%row] regs [[32]] where (%row) steps [[32]] in [0:64] else %f : memref<64xf32> (index, index) -> vector<2xf32>
  %b = kernel.load %x[%row] regs [[32]] where (%row, %row) steps [[32, 0]] in [0:63, 0:32] else %f : memref<64xf32> (index, index, index) -> vector<2xf32>
  kernel.store %b, %x[%row] regs [[32]] where (%row) steps [[32]] in [0:64] : memref<64xf32> (index, index), vector<2xf32>
  "test.use"(%a) : (vector<2xf32>) -> ()
}

// -----

// A size known at run time lies in its range: a lane is below one of at least 32, perhaps not below one of at least 31.
// CHECK-LABEL: @sizes
// CHECK: kernel.load %x[%lane] : memref<?xf32
// CHECK-NEXT: kernel.load %y[%lane] where (%lane) in [0:#s1]
// CHECK-NEXT: %n = payload.extent #s0 : index
// CHECK-NEXT: [[Y:%.*]] = payload.constant true
// CHECK-NEXT: "test.use"(%{{.*}}, %{{.*}}, [[Y]])
kernel.func @sizes(%x: memref<?xf32, #payload.extents<#payload.symbol<s0[32:100]>>>, %y: memref<?xf32, #payload.extents<#payload.symbol<s1[31:100]>>>) grid [1] warps 1 {
  %lane = kernel.id lane
  %f = payload.constant 0.0 : f32
  %a = kernel.load %x[%lane] where (%lane) in [0:#payload.symbol<s0[32:100]>] else %f : memref<?xf32, #payload.extents<#payload.symbol<s0[32:100]>>> (index, index) -> vector<1xf32>
  %b = kernel.load %y[%lane] where (%lane) in [0:#payload.symbol<s1[31:100]>] else %f : memref<?xf32, #payload.extents<#payload.symbol<s1[31:100]>>> (index, index) -> vector<1xf32>
  %n = payload.extent #payload.symbol<s0[32:100]> : index
  %in = payload.cmp lt %lane, %n : index
  "test.use"(%a, %b, %in) : (vector<1xf32>, vector<1xf32>, i1) -> ()
}
