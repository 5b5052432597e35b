// RUN: dl-opt %s -p host-update-in-place,dce --split-input-file --remarks --verify-diagnostics | filecheck %s

// Every place keeps what it has or, from %start on, gets a new value: the old values are not even read.
// CHECK-LABEL: kernel.func @append_in_place
// CHECK-SAME: (%start: memref<1xi64>, %new: memref<1xf32>, %old: memref<64xf32>) grid [2] warps 1 attributes {parts = ["append"]} {
// CHECK: %[[IS:.*]] = payload.cmp eq
// CHECK-NEXT: %[[HERE:.*]] = kernel.extract %[[IS]][0]
// CHECK-NEXT: scf.if %[[HERE]] {
// CHECK-NEXT: %[[V:.*]] = kernel.load %new
// CHECK-NOT: kernel.load
// CHECK: kernel.store %[[V]], %old[%i] : memref<64xf32>
// CHECK-NEXT: }
// CHECK: func.func @step(%start: memref<1xi64>, %new: memref<1xf32>, %cache: memref<64xf32>, %out: memref<64xf32>) attributes {updates = array<i64: 3, 2>, in_place = array<i64: 3, 2>} {
// CHECK-NEXT: kernel.launch @append_in_place(%start, %new, %cache)
// CHECK-NEXT: func.return
kernel.func @append(%start: memref<1xi64>, %new: memref<1xf32>, %old: memref<64xf32>, %out: memref<64xf32>) grid [2] warps 1 {
  %block = kernel.id block
  %thread = kernel.id thread
  %c = payload.constant 32 : index
  %b = arith.muli %block, %c : index
  %i = arith.addi %b, %thread : index
  %z = payload.constant 0 : index
  %s = kernel.load %start[%z] : memref<1xi64> -> vector<1xi64>
  %n = kernel.indices %i steps [] : vector<1xindex>
  %m = payload.cast %n : vector<1xindex> -> vector<1xi64>
  %is = payload.cmp eq %m, %s : vector<1xi64>
  %v = kernel.load %new[%z] : memref<1xf32> -> vector<1xf32>
  %o = kernel.load %old[%i] : memref<64xf32> -> vector<1xf32>
  %r = payload.select %is, %v, %o : vector<1xf32>
  kernel.store %r, %out[%i] : memref<64xf32>, vector<1xf32>
}
func.func @step(%start: memref<1xi64>, %new: memref<1xf32>, %cache: memref<64xf32>, %out: memref<64xf32>)
    attributes {updates = array<i64: 3, 2>} {
  kernel.launch @append(%start, %new, %cache, %out) : memref<1xi64>, memref<1xf32>, memref<64xf32>, memref<64xf32>
  func.return
}

// -----

// Read where it is written: in place. What reads the result reads the argument.
// CHECK-LABEL: kernel.func @double_in_place(%x: memref<32xf32>) grid [1] warps 1 attributes {parts = ["double"]} {
// CHECK: kernel.store %{{.*}}, %x[%i]
// CHECK: kernel.launch @double_in_place(%x) : memref<32xf32>
// CHECK-NEXT: kernel.launch @double(%x, %z)
kernel.func @double(%x: memref<32xf32>, %y: memref<32xf32>) grid [1] warps 1 {
  %i = kernel.id thread
  %v = kernel.load %x[%i] : memref<32xf32> -> vector<1xf32>
  %w = arith.addf %v, %v : vector<1xf32>
  kernel.store %w, %y[%i] : memref<32xf32>, vector<1xf32>
}
func.func @chain(%x: memref<32xf32>, %y: memref<32xf32>, %z: memref<32xf32>) attributes {updates = array<i64: 1, 0>} {
  kernel.launch @double(%x, %y) : memref<32xf32>, memref<32xf32>
  kernel.launch @double(%y, %z) : memref<32xf32>, memref<32xf32>
  func.return
}

// -----

// CHECK-LABEL: func.func @late
// CHECK-SAME: attributes {updates = array<i64: 1, 0>} {
// CHECK-NEXT: kernel.launch @double(%x, %y)
// CHECK-NEXT: kernel.launch @double(%x, %z)
kernel.func @double(%x: memref<32xf32>, %y: memref<32xf32>) grid [1] warps 1 {
  %i = kernel.id thread
  %v = kernel.load %x[%i] : memref<32xf32> -> vector<1xf32>
  %w = arith.addf %v, %v : vector<1xf32>
  kernel.store %w, %y[%i] : memref<32xf32>, vector<1xf32>
}
// expected-remark@+1 {{x is not updated in place: its old value is needed after the new one is written}}
func.func @late(%x: memref<32xf32>, %y: memref<32xf32>, %z: memref<32xf32>) attributes {updates = array<i64: 1, 0>} {
  kernel.launch @double(%x, %y) : memref<32xf32>, memref<32xf32>
  kernel.launch @double(%x, %z) : memref<32xf32>, memref<32xf32>
  func.return
}

// -----

// CHECK-LABEL: func.func @crossed
// CHECK-SAME: attributes {updates = array<i64: 1, 0>} {
// CHECK-NEXT: kernel.launch @reverse(%x, %y)
kernel.func @reverse(%x: memref<32xf32>, %y: memref<32xf32>) grid [1] warps 1 {
  %i = kernel.id thread
  %c = payload.constant 31 : index
  %j = arith.subi %c, %i : index
  %v = kernel.load %x[%j] : memref<32xf32> -> vector<1xf32>
  kernel.store %v, %y[%i] : memref<32xf32>, vector<1xf32>
}
// expected-remark@+1 {{x is not updated in place: a thread may read what another one has written}}
func.func @crossed(%x: memref<32xf32>, %y: memref<32xf32>) attributes {updates = array<i64: 1, 0>} {
  kernel.launch @reverse(%x, %y) : memref<32xf32>, memref<32xf32>
  func.return
}

// -----

// Two threads hold each element and one of them stores it; the other one might read it too late.
// CHECK-LABEL: func.func @held_twice
// CHECK-SAME: attributes {updates = array<i64: 1, 0>} {
// CHECK-NEXT: kernel.launch @twice(%x, %y)
kernel.func @twice(%x: memref<16xf32>, %y: memref<16xf32>) grid [1] warps 1 {
  %t = kernel.id thread
  %c = payload.constant 15 : index
  %i = arith.andi %t, %c : index
  %first = payload.cmp eq %i, %t : index
  %v = kernel.load %x[%i] : memref<16xf32> -> vector<1xf32>
  %w = arith.addf %v, %v : vector<1xf32>
  kernel.store %w, %y[%i] if %first : memref<16xf32>, vector<1xf32>
}
// expected-remark@+1 {{x is not updated in place: a thread may read what another one has written}}
func.func @held_twice(%x: memref<16xf32>, %y: memref<16xf32>) attributes {updates = array<i64: 1, 0>} {
  kernel.launch @twice(%x, %y) : memref<16xf32>, memref<16xf32>
  func.return
}

// -----

// The condition differs from thread to thread, and lanes exchange values behind it: all of them have to do that.
// CHECK-LABEL: kernel.func @sum_in_place
// CHECK-NOT: scf.if
// CHECK: %[[S:.*]] = kernel.shuffle_xor
// CHECK: kernel.store %{{.*}}, %old[%i] if %{{.*}} : memref<32xf32>
kernel.func @sum(%start: memref<1xi64>, %new: memref<32xf32>, %old: memref<32xf32>, %out: memref<32xf32>) grid [1] warps 1 {
  %i = kernel.id thread
  %z = payload.constant 0 : index
  %s = kernel.load %start[%z] : memref<1xi64> -> vector<1xi64>
  %n = kernel.indices %i steps [] : vector<1xindex>
  %m = payload.cast %n : vector<1xindex> -> vector<1xi64>
  %is = payload.cmp eq %m, %s : vector<1xi64>
  %v = kernel.load %new[%i] : memref<32xf32> -> vector<1xf32>
  %w = kernel.shuffle_xor %v by 1 : vector<1xf32>
  %o = kernel.load %old[%i] : memref<32xf32> -> vector<1xf32>
  %r = payload.select %is, %w, %o : vector<1xf32>
  kernel.store %r, %out[%i] : memref<32xf32>, vector<1xf32>
}
func.func @step(%start: memref<1xi64>, %new: memref<32xf32>, %cache: memref<32xf32>, %out: memref<32xf32>)
    attributes {updates = array<i64: 3, 2>} {
  kernel.launch @sum(%start, %new, %cache, %out) : memref<1xi64>, memref<32xf32>, memref<32xf32>, memref<32xf32>
  func.return
}

// -----

// Coordinates that are equal in other shapes are not the same place.
// CHECK: kernel.launch @turned(%cache, %out)
kernel.func @turned(%old: memref<2x4xf32>, %out: memref<4x2xf32>) grid [2] warps 1 {
  %i = kernel.id block
  %z = payload.constant 0 : index
  %o = kernel.load %old[%i, %z] : memref<2x4xf32> -> vector<1xf32>
  %r = arith.negf %o : vector<1xf32>
  kernel.store %r, %out[%i, %z] : memref<4x2xf32>, vector<1xf32>
}
// expected-remark@+1 {{cache is not updated in place: a thread may read what another one has written}}
func.func @step(%cache: memref<8xf32>, %out: memref<8xf32>) attributes {updates = array<i64: 1, 0>} {
  kernel.launch @turned(%cache, %out) : memref<8xf32>, memref<8xf32>
  func.return
}
