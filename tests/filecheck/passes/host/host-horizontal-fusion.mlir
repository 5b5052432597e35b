// RUN: dl-opt %s -p host-horizontal-fusion --split-input-file | filecheck %s

// Both read %x: one launch of five blocks, of which the first two do what @a does.
// CHECK-LABEL: kernel.func @a_b
// CHECK-SAME: (%x: memref<160xf32>, %y: memref<64xf32>, %z: memref<96xf32>) grid [5] warps 1 attributes {parts = ["a", "b"]} {
// CHECK-NEXT: %block = kernel.id block
// CHECK-NEXT: %[[N:.*]] = arith.constant 2 : index
// CHECK-NEXT: %[[FIRST:.*]] = payload.cmp lt %block, %[[N]] : index
// CHECK-NEXT: scf.if %[[FIRST]] {
// CHECK-NEXT: %thread = kernel.id thread
// CHECK-NEXT: kernel.load %x[%block]
// CHECK-NEXT: kernel.store %{{.*}}, %y[%block]
// CHECK-NEXT: } else {
// CHECK: %[[REST:.*]] = arith.subi %block, %[[N]] : index
// CHECK-NEXT: %[[OWN:.*]] = arith.maxsi %[[REST]], %{{.*}} : index
// CHECK: kernel.load %x[%[[OWN]]]
// CHECK-NEXT: math.exp
// CHECK-NEXT: kernel.store %{{.*}}, %z[%[[OWN]]]
// CHECK-NOT: kernel.func
// CHECK: func.func @main
// CHECK-NEXT: kernel.launch @a_b(%x, %y, %z) : memref<160xf32>, memref<64xf32>, memref<96xf32>
// CHECK-NEXT: func.return
kernel.func @a(%x: memref<160xf32>, %y: memref<64xf32>) grid [2] warps 1 {
  %block = kernel.id block
  %thread = kernel.id thread
  %v = kernel.load %x[%block] : memref<160xf32> -> vector<1xf32>
  kernel.store %v, %y[%block] : memref<64xf32>, vector<1xf32>
}
kernel.func @b(%x: memref<160xf32>, %z: memref<96xf32>) grid [3] warps 1 {
  %block = kernel.id block
  %v = kernel.load %x[%block] : memref<160xf32> -> vector<1xf32>
  %e = math.exp %v : vector<1xf32>
  kernel.store %e, %z[%block] : memref<96xf32>, vector<1xf32>
}
func.func @main(%x: memref<160xf32>, %y: memref<64xf32>, %z: memref<96xf32>) {
  kernel.launch @a(%x, %y) : memref<160xf32>, memref<64xf32>
  kernel.launch @b(%x, %z) : memref<160xf32>, memref<96xf32>
  func.return
}

// -----

// The second needs what the first writes; the third writes what the first reads, and has more warps than the second.
// CHECK-LABEL: func.func @ordered
// CHECK-NEXT: kernel.launch @a(%x, %y)
// CHECK-NEXT: kernel.launch @a(%y, %z)
// CHECK-NEXT: kernel.launch @wide(%y, %x)
kernel.func @a(%x: memref<64xf32>, %y: memref<64xf32>) grid [2] warps 1 {
  %block = kernel.id block
  %v = kernel.load %x[%block] : memref<64xf32> -> vector<1xf32>
  kernel.store %v, %y[%block] : memref<64xf32>, vector<1xf32>
}
kernel.func @wide(%x: memref<64xf32>, %y: memref<64xf32>) grid [2] warps 2 {
  %block = kernel.id block
  %v = kernel.load %x[%block] : memref<64xf32> -> vector<1xf32>
  kernel.store %v, %y[%block] : memref<64xf32>, vector<1xf32>
}
func.func @ordered(%x: memref<64xf32>, %y: memref<64xf32>, %z: memref<64xf32>) {
  kernel.launch @a(%x, %y) : memref<64xf32>, memref<64xf32>
  kernel.launch @a(%y, %z) : memref<64xf32>, memref<64xf32>
  kernel.launch @wide(%y, %x) : memref<64xf32>, memref<64xf32>
  func.return
}

// -----

// Blocks of one kernel with little shared memory would wait for room beside those of another with much.
// CHECK-LABEL: func.func @crowded
// CHECK-NEXT: kernel.launch @a(
// CHECK-NEXT: kernel.launch @b(
kernel.func @a(%x: memref<64xf32>, %y: memref<64xf32>) grid [2] warps 1 shared 4096 {
  %block = kernel.id block
  %v = kernel.load %x[%block] : memref<64xf32> -> vector<1xf32>
  kernel.store %v, %y[%block] : memref<64xf32>, vector<1xf32>
}
kernel.func @b(%x: memref<64xf32>, %y: memref<64xf32>) grid [3] warps 1 shared 8704 {
  %block = kernel.id block
  %v = kernel.load %x[%block] : memref<64xf32> -> vector<1xf32>
  kernel.store %v, %y[%block] : memref<64xf32>, vector<1xf32>
}
func.func @crowded(%x: memref<64xf32>, %y: memref<64xf32>, %z: memref<64xf32>) {
  kernel.launch @a(%x, %y) : memref<64xf32>, memref<64xf32>
  kernel.launch @b(%x, %z) : memref<64xf32>, memref<64xf32>
  func.return
}

// -----

// The same kernel twice, on other data each: one launch, and a second one of the same kind shares its kernel.
// CHECK-LABEL: kernel.func @a_a
// CHECK-NOT: kernel.func
// CHECK: kernel.launch @a_a(%x, %y, %z)
// CHECK-NEXT: kernel.launch @a_a(%y, %v, %w)
kernel.func @a(%x: memref<64xf32>, %y: memref<64xf32>) grid [2] warps 1 {
  %block = kernel.id block
  %v = kernel.load %x[%block] : memref<64xf32> -> vector<1xf32>
  kernel.store %v, %y[%block] : memref<64xf32>, vector<1xf32>
}
func.func @main(%x: memref<64xf32>, %y: memref<64xf32>, %z: memref<64xf32>, %v: memref<64xf32>, %w: memref<64xf32>) {
  kernel.launch @a(%x, %y) : memref<64xf32>, memref<64xf32>
  kernel.launch @a(%x, %z) : memref<64xf32>, memref<64xf32>
  kernel.launch @a(%y, %v) : memref<64xf32>, memref<64xf32>
  kernel.launch @a(%y, %w) : memref<64xf32>, memref<64xf32>
  func.return
}

// -----

// Which kernel a block belongs to would depend on a size known only at run time.
// CHECK-LABEL: func.func @sizes
// CHECK-NEXT: kernel.launch @a(
// CHECK-NEXT: kernel.launch @b(
kernel.func @a(%x: memref<64xf32>, %y: memref<64xf32>) grid [#payload.symbol<s0[1:65]>] warps 1 {
  %block = kernel.id block
  %v = kernel.load %x[%block] : memref<64xf32> -> vector<1xf32>
  kernel.store %v, %y[%block] : memref<64xf32>, vector<1xf32>
}
kernel.func @b(%x: memref<64xf32>, %y: memref<64xf32>) grid [3] warps 1 {
  %block = kernel.id block
  %v = kernel.load %x[%block] : memref<64xf32> -> vector<1xf32>
  kernel.store %v, %y[%block] : memref<64xf32>, vector<1xf32>
}
func.func @sizes(%x: memref<64xf32>, %y: memref<64xf32>, %z: memref<64xf32>) {
  kernel.launch @a(%x, %y) : memref<64xf32>, memref<64xf32>
  kernel.launch @b(%x, %z) : memref<64xf32>, memref<64xf32>
  func.return
}

// -----

// @first shares a launch with @third, behind @second; @second cannot then go behind @third, which reads what it writes.
// CHECK-LABEL: func.func @behind_a_shared_launch
// CHECK-NEXT: kernel.launch @second(%x, %b)
// CHECK-NEXT: kernel.launch @first_third(%x, %a, %b, %c)
// CHECK-NEXT: kernel.launch @fourth(%x, %d)
kernel.func @first(%x: memref<64xf32>, %y: memref<64xf32>) grid [2] warps 1 {
  %block = kernel.id block
  %v = kernel.load %x[%block] : memref<64xf32> -> vector<1xf32>
  kernel.store %v, %y[%block] : memref<64xf32>, vector<1xf32>
}
kernel.func @second(%x: memref<64xf32>, %y: memref<64xf32>) grid [2] warps 2 {
  %block = kernel.id block
  %v = kernel.load %x[%block] : memref<64xf32> -> vector<1xf32>
  kernel.store %v, %y[%block] : memref<64xf32>, vector<1xf32>
}
kernel.func @third(%x: memref<64xf32>, %b: memref<64xf32>, %y: memref<64xf32>) grid [2] warps 1 {
  %block = kernel.id block
  %v = kernel.load %x[%block] : memref<64xf32> -> vector<1xf32>
  %w = kernel.load %b[%block] : memref<64xf32> -> vector<1xf32>
  %s = arith.addf %v, %w : vector<1xf32>
  kernel.store %s, %y[%block] : memref<64xf32>, vector<1xf32>
}
kernel.func @fourth(%x: memref<64xf32>, %y: memref<64xf32>) grid [2] warps 2 {
  %block = kernel.id block
  %v = kernel.load %x[%block] : memref<64xf32> -> vector<1xf32>
  kernel.store %v, %y[%block] : memref<64xf32>, vector<1xf32>
}
func.func @behind_a_shared_launch(%x: memref<64xf32>, %a: memref<64xf32>, %b: memref<64xf32>, %c: memref<64xf32>, %d: memref<64xf32>) {
  kernel.launch @first(%x, %a) : memref<64xf32>, memref<64xf32>
  kernel.launch @second(%x, %b) : memref<64xf32>, memref<64xf32>
  kernel.launch @third(%x, %b, %c) : memref<64xf32>, memref<64xf32>, memref<64xf32>
  kernel.launch @fourth(%x, %d) : memref<64xf32>, memref<64xf32>
  func.return
}

// -----

// Partitions have the registers of the kernel that wants more, and the blocks at once of the kernel that wants fewer.
// CHECK-LABEL: kernel.func @a_b
// CHECK-SAME: grid [5] warps 8 blocks_per_sm 4
// CHECK: partition "computes"({{.*}}) warps 4 registers 104 {
// CHECK: partition "brings"({{.*}}) warps 4 registers 24 {
// CHECK: func.func @registers
// CHECK-NEXT: kernel.launch @a_b(%x, %y, %z)
// A block has not so many that the first partition could have what @a and the second what @c gives it.
// CHECK-LABEL: func.func @too_many
// CHECK-NEXT: kernel.launch @a(
// CHECK-NEXT: kernel.launch @c(
kernel.func @a(%x: memref<64xf32>, %y: memref<64xf32>) grid [2] warps 8 blocks_per_sm 4 {
  kernel.warp_specialize {
    partition "computes"(%w) warps 4 registers 104 {
      %v = kernel.load %x[%w] : memref<64xf32> -> vector<1xf32>
      kernel.store %v, %y[%w] : memref<64xf32>, vector<1xf32>
    }
    partition "brings"(%w_1) warps 4 registers 24 {
    }
  }
}
kernel.func @b(%x: memref<64xf32>, %y: memref<64xf32>) grid [3] warps 8 blocks_per_sm 5 {
  kernel.warp_specialize {
    partition "computes"(%w) warps 4 registers 72 {
      %v = kernel.load %x[%w] : memref<64xf32> -> vector<1xf32>
      kernel.store %v, %y[%w] : memref<64xf32>, vector<1xf32>
    }
    partition "brings"(%w_1) warps 4 registers 24 {
    }
  }
}
kernel.func @c(%x: memref<64xf32>, %y: memref<64xf32>) grid [3] warps 8 blocks_per_sm 4 {
  kernel.warp_specialize {
    partition "computes"(%w) warps 4 registers 72 {
      %v = kernel.load %x[%w] : memref<64xf32> -> vector<1xf32>
      kernel.store %v, %y[%w] : memref<64xf32>, vector<1xf32>
    }
    partition "brings"(%w_1) warps 4 registers 56 {
    }
  }
}
func.func @registers(%x: memref<64xf32>, %y: memref<64xf32>, %z: memref<64xf32>) {
  kernel.launch @a(%x, %y) : memref<64xf32>, memref<64xf32>
  kernel.launch @b(%x, %z) : memref<64xf32>, memref<64xf32>
  func.return
}
func.func @too_many(%x: memref<64xf32>, %y: memref<64xf32>, %z: memref<64xf32>) {
  kernel.launch @a(%x, %y) : memref<64xf32>, memref<64xf32>
  kernel.launch @c(%x, %z) : memref<64xf32>, memref<64xf32>
  func.return
}

// -----

// The first launch must not move past the operation that reads a size: it would wait for the size.
// CHECK-LABEL: func.func @main
// CHECK-NEXT: kernel.launch @a(%x, %y)
// CHECK-NEXT: host.bind_size %n as #u0 : memref<i64>
// CHECK-NEXT: kernel.launch @a(%x, %z)
kernel.func @a(%x: memref<64xf32>, %y: memref<64xf32>) grid [2] warps 1 {
  %block = kernel.id block
  %v = kernel.load %x[%block] : memref<64xf32> -> vector<1xf32>
  kernel.store %v, %y[%block] : memref<64xf32>, vector<1xf32>
}
func.func @main(%x: memref<64xf32>, %n: memref<i64>, %y: memref<64xf32>, %z: memref<64xf32>) {
  kernel.launch @a(%x, %y) : memref<64xf32>, memref<64xf32>
  host.bind_size %n as #payload.symbol<u0[0:9]> : memref<i64>
  kernel.launch @a(%x, %z) : memref<64xf32>, memref<64xf32>
  func.return
}
