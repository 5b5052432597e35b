// RUN: dl-opt %s --split-input-file --verify-diagnostics -p convert-tile-to-kernel,cse | filecheck %s

// A row of 128 elements in two warps: 16 bytes a thread, lanes by shuffles, warps through shared memory.
// The result of main becomes its last argument.

// CHECK-LABEL: kernel.func @row(%x: memref<8x256xf32>, %y: memref<8xf32>) grid [8] warps 2 {
// CHECK:         %[[AT:.*]] = arith.muli %thread, %{{.*}} : index
// CHECK:         %[[SHARED:.*]] = kernel.shared : memref<2xf32, "shared">
// CHECK:         %v = kernel.load %x[%block, %[[AT]]] regs {{\[\[}}0, 1], [0, 2]] vec 4 : memref<8x256xf32> -> vector<4xf32>
// CHECK-NEXT:    %[[S0:.*]] = kernel.reduce_registers add %v over [0, 1] : vector<4xf32> -> vector<1xf32>
// CHECK-NEXT:    %[[T:.*]] = kernel.shuffle_xor %[[S0]] by 1 : vector<1xf32>
// CHECK-NEXT:    %{{.*}} = arith.addf %[[S0]], %[[T]] : vector<1xf32>
// CHECK:         kernel.shuffle_xor %{{.*}} by 16
// CHECK-NEXT:    %[[S5:.*]] = arith.addf
// CHECK-NEXT:    %first = payload.cmp eq %lane, %{{.*}} : index
// CHECK-NEXT:    kernel.store %[[S5]], %[[SHARED]][%warp] if %first
// CHECK-NEXT:    %[[P:.*]] = kernel.load %[[SHARED]][%{{.*}}] regs {{\[\[}}1]] vec 2 : memref<2xf32, "shared"> -> vector<2xf32>
// CHECK-NEXT:    %[[S:.*]] = kernel.reduce_registers add %[[P]] over [0] : vector<2xf32> -> vector<1xf32>
// CHECK-NEXT:    %[[E:.*]] = kernel.extract %[[S]][0] : vector<1xf32>
// CHECK-NEXT:    %[[V:.*]] = kernel.splat %[[E]] : f32 -> vector<1xf32>
// CHECK-NEXT:    %[[ONE:.*]] = payload.cmp eq %thread, %{{.*}} : index
// CHECK-NEXT:    kernel.store %[[V]], %y[%block] if %[[ONE]]
// CHECK:       func.func @main(%x: memref<8x256xf32>, %y: memref<8xf32>) {
// CHECK-NEXT:    kernel.launch @row(%x, %y) : memref<8x256xf32>, memref<8xf32>
// CHECK-NEXT:    func.return
#row = #tile.layout<reg = [[1], [2]], lane = [[4], [8], [16], [32], [64]], warp = [[128]]>
tile.kernel @row(%x: memref<8x256xf32>, %y: memref<8xf32>) blocks (%i) in [8] warps 2 {
  %v = tile.load %x[%i, d0] : memref<8x256xf32> -> tensor<256xf32, #row>
  %s = tile.reduce add %v over [0] : tensor<256xf32, #row> -> f32
  tile.store %s, %y[%i] : f32, memref<8xf32>
}
func.func @main(%x: tensor<8x256xf32>) -> tensor<8xf32> {
  %y = tile.launch @row(%x) : (tensor<8x256xf32>) -> tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// -----

// The end of a range: a bound that 4 divides leaves 16 bytes at once, one that only 2 divides leaves 8, and a check that
// always holds is gone.

// CHECK-LABEL: kernel.func @ends
// CHECK:         %a = kernel.load %x[%[[AT:.*]]] regs {{\[\[}}1], [2]] vec 4 where 0 <= %[[AT]] < 120 steps {{\[\[}}0], [0]] else %z : memref<120xf32> -> vector<4xf32>
// CHECK-NEXT:    %b = kernel.load %x[%[[AT]]] regs {{\[\[}}1], [2]] vec 2 where 0 <= %[[AT]] < 110 steps {{\[\[}}0], [2]] else %z
// CHECK-NEXT:    %c = kernel.load %w[%[[AT]]] regs {{\[\[}}1], [2]] vec 4 : memref<128xf32>
#l = #tile.layout<reg = [[1], [2]], lane = [[4], [8], [16], [32], [64]], warp = []>
tile.kernel @ends(%x: memref<120xf32>, %w: memref<128xf32>, %y: memref<128xf32>) blocks () in [] warps 1 {
  %z = payload.constant 0.0 : f32
  %a = tile.load %x[d0] where 0 <= d0 < 120 else %z : memref<120xf32> -> tensor<128xf32, #l>
  %b = tile.load %x[d0] where 0 <= d0 < 110 else %z : memref<120xf32> -> tensor<128xf32, #l>
  %c = tile.load %w[d0] where 0 <= d0 < 128 else %z : memref<128xf32> -> tensor<128xf32, #l>
  %s = arith.addf %a, %b : tensor<128xf32, #l>
  %t = arith.addf %s, %c : tensor<128xf32, #l>
  tile.store %t, %y[d0] : tensor<128xf32, #l>, memref<128xf32>
}

// -----

// A quotient of an index is no sum over register bits: the coordinate is computed for every register.

// CHECK-LABEL: kernel.func @quotient
// CHECK:         %[[D:.*]] = kernel.indices %{{.*}} steps [1] : vector<2xindex>
// CHECK:         %[[Q:.*]] = arith.divui %[[D]], %{{.*}} : vector<2xindex>
// CHECK:         %v = kernel.load %x[%[[Q]]] regs {{\[\[}}0]] : memref<22xf32> -> vector<2xf32>
// CHECK-NEXT:    kernel.store %v, %y[%{{.*}}] regs {{\[\[}}1]] vec 2
#q = #tile.layout<reg = [[1]], lane = [[2], [4], [8], [16], [32]], warp = []>
tile.kernel @quotient(%x: memref<22xf32>, %y: memref<64xf32>) blocks () in [] warps 1 {
  %v = tile.load %x[d0 floordiv 3] : memref<22xf32> -> tensor<64xf32, #q>
  tile.store %v, %y[d0] : tensor<64xf32, #q>, memref<64xf32>
}

// -----

// A gathered row that is one for all registers of a thread is a scalar, and leaves the access wide.

// CHECK-LABEL: kernel.func @rows
// CHECK:         %[[N:.*]] = kernel.extract %{{.*}}[0] : vector<1xindex>
// CHECK:         %g = kernel.load %x[%[[N]], %{{.*}}] regs {{\[\[}}0, 1], [0, 2]] vec 4 : memref<9x32xf32> -> vector<4xf32>
#one = #tile.layout<reg = [], lane = [[0], [0], [0], [1], [2]], warp = []>
#all = #tile.layout<reg = [[0, 1], [0, 2]], lane = [[0, 4], [0, 8], [0, 16], [1, 0], [2, 0]], warp = []>
tile.kernel @rows(%x: memref<9x32xf32>, %t: memref<4xi64>, %y: memref<4x32xf32>) blocks () in [] warps 1 {
  %n = tile.load %t[d0] : memref<4xi64> -> tensor<4xi64, #one>
  %i = payload.cast %n : tensor<4xi64, #one> -> tensor<4xindex, #one>
  %b = tile.broadcast %i along [1] : tensor<4xindex, #one> -> tensor<4x32xindex, #all>
  %g = tile.load %x[%b, d1] : memref<9x32xf32> -> tensor<4x32xf32, #all>
  tile.store %g, %y[d0, d1] : tensor<4x32xf32, #all>, memref<4x32xf32>
}

// -----

// Intermediate results get a buffer; a kernel without blocks is not launched; a result that is returned twice is
// computed twice.

// CHECK:       func.func @main(%x: memref<32xf32>, %b: memref<32xf32>, %b_1: memref<32xf32>, %e: memref<0xf32>) {
// CHECK-NEXT:    %a = kernel.alloc : memref<32xf32>
// CHECK-NEXT:    kernel.launch @copy(%x, %a)
// CHECK-NEXT:    kernel.launch @copy(%a, %b)
// CHECK-NEXT:    kernel.launch @copy(%a, %b_1)
// CHECK-NEXT:    func.return
#c = #tile.layout<reg = [], lane = [[1], [2], [4], [8], [16]], warp = []>
tile.kernel @copy(%x: memref<32xf32>, %y: memref<32xf32>) blocks () in [] warps 1 {
  %v = tile.load %x[d0] : memref<32xf32> -> tensor<32xf32, #c>
  tile.store %v, %y[d0] : tensor<32xf32, #c>, memref<32xf32>
}
tile.kernel @empty(%y: memref<0xf32>) blocks (%i) in [0] warps 1 {
}
func.func @main(%x: tensor<32xf32>) -> (tensor<32xf32>, tensor<32xf32>, tensor<0xf32>) {
  %a = tile.launch @copy(%x) : (tensor<32xf32>) -> tensor<32xf32>
  %b = tile.launch @copy(%a) : (tensor<32xf32>) -> tensor<32xf32>
  %e = tile.launch @empty() : () -> tensor<0xf32>
  func.return %b, %b, %e : tensor<32xf32>, tensor<32xf32>, tensor<0xf32>
}

// -----

// Whoever needs an element of another thread must say so before.

// CHECK: error: tile.broadcast: expected operands in one layout; run tile-assign-layouts, which inserts conversions
#v = #tile.layout<reg = [], lane = [[1], [2], [4], [8], [16]], warp = []>
#w = #tile.layout<reg = [[0, 1]], lane = [[1, 0], [2, 0], [4, 0], [16, 0], [8, 0]], warp = []>
tile.kernel @other(%x: memref<32xf32>) blocks () in [] warps 1 {
  %v = tile.load %x[d0] : memref<32xf32> -> tensor<32xf32, #v>
  %b = tile.broadcast %v along [1] : tensor<32xf32, #v> -> tensor<32x2xf32, #w>
}

// -----

// CHECK: error: tile.load: expected a register layout of the tile %v, but got tensor<32xf32>; run tile-assign-layouts
tile.kernel @none(%x: memref<32xf32>) blocks () in [] warps 1 {
  %v = tile.load %x[d0] : memref<32xf32> -> tensor<32xf32>
}

// -----

// A product on tensor cores: sixteen k at a time, whole warps read matrices, transposed where k is not the fastest.

// CHECK-LABEL: kernel.func @tensor_cores_trans
// CHECK:         %c = scf.for %kk
// CHECK:           kernel.ldmatrix count 4 %{{.*}}[%{{.*}}] steps [512] : memref<1024xbf16, "shared"> -> vector<16xbf16>
// CHECK:           kernel.ldmatrix count 4 trans %{{.*}}[%{{.*}}] xor steps [16] : memref<1024xbf16, "shared"> -> vector<16xbf16>
// CHECK-NEXT:      %{{.*}} = kernel.mma %{{.*}}, %{{.*}}, %{{.*}} rows [1, 4] cols [2, 3] : vector<16xbf16>, vector<16xbf16>, vector<32xf32>
// CHECK:         %d_1 = kernel.permute_registers %d by %lane reg_xor [4, 8, 0, 0, 0] : vector<32xbf16>
// CHECK:         %d_2 = kernel.shuffle %{{.*}} lane_xor [0, 1, 2, 0, 0] : vector<32xbf16>
// CHECK-NEXT:    %d_3 = kernel.permute_registers %d_2 by %lane reg_xor [2, 4, 0, 0, 0] : vector<32xbf16>
#layout = #tile.layout<reg = [[0, 1], [8, 0], [0, 8], [0, 16], [16, 0]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = []>
#layout1 = #tile.layout<reg = [[0, 1], [0, 2], [0, 4], [8, 0], [16, 0]], lane = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], warp = []>
#shared = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [1, 0], [2, 16], [4, 8], [8, 0], [16, 0]]>
tile.kernel @tensor_cores_trans(%x: memref<32x32xbf16>, %w: memref<32x32xbf16>, %y: memref<32x32xbf16>) blocks () in [] warps 1 {
  %zero = payload.constant 0.000000e+00 : tensor<32x32xf32, #layout>
  %a = tile.load %x[d0, d1] : memref<32x32xbf16> -> tensor<32x32xbf16, #layout1>
  %a_shared = tile.stage %a : tensor<32x32xbf16, #layout1> -> tensor<32x32xbf16, #shared>
  %b = tile.load %w[d0, d1] : memref<32x32xbf16> -> tensor<32x32xbf16, #layout1>
  %b_shared = tile.stage %b : tensor<32x32xbf16, #layout1> -> tensor<32x32xbf16, #shared>
  %c = tile.dot %a_shared, %b_shared, %zero atom "mma" : tensor<32x32xbf16, #shared>, tensor<32x32xbf16, #shared>, tensor<32x32xf32, #layout> -> tensor<32x32xf32, #layout>
  %d = payload.cast %c : tensor<32x32xf32, #layout> -> tensor<32x32xbf16, #layout>
  %d_1 = tile.convert_layout %d : tensor<32x32xbf16, #layout> -> tensor<32x32xbf16, #layout1>
  tile.store %d_1, %y[d0, d1] : tensor<32x32xbf16, #layout1>, memref<32x32xbf16>
}

// -----

// The results of a function that PyTorch computes are its trailing buffers.
// CHECK: func.func private @eager_qr(memref<4xf32>, memref<4xf32>, memref<2xf32>) -> () attributes {torch.eager = "aten.qr", torch.eager_results = 2 : i64}
// CHECK-LABEL: func.func @main(%x: memref<4xf32>, %out: memref<2xf32>) {
// CHECK-NEXT: %[[Q:.*]] = kernel.alloc : memref<4xf32>
// CHECK-NEXT: func.call @eager_qr(%x, %[[Q]], %out) : (memref<4xf32>, memref<4xf32>, memref<2xf32>) -> ()
func.func private @eager_qr(tensor<4xf32>) -> (tensor<4xf32>, tensor<2xf32>) attributes {torch.eager = "aten.qr"}
func.func @main(%x: tensor<4xf32>) -> tensor<2xf32> {
  %0, %1 = func.call @eager_qr(%x) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<2xf32>)
  func.return %1 : tensor<2xf32>
}

// -----

#s0 = #payload.symbol<s0[1:1001]>

// Sizes known at run time. Blocks are numbered with the last extent of the grid fastest, so the first two are found by
// dividing by how many of the last there are. Rows of 48 elements keep 16 bytes at once; those of s0 elements do not.

// CHECK-LABEL: kernel.func @sizes(%x: memref<?x48xf32, #payload.extents<#s0, 48>>, %y: memref<2x3x?xf32, #payload.extents<2, 3, #s0>>) grid [2, 3, #s0 / 128] warps 1
// CHECK:         %s0 = payload.extent #s0 : index
// CHECK-NEXT:    %[[C127:.*]] = payload.constant 127 : index
// CHECK-NEXT:    %[[UP:.*]] = arith.addi %s0, %[[C127]] : index
// CHECK-NEXT:    %[[C7:.*]] = payload.constant 7 : index
// CHECK-NEXT:    %[[N:.*]] = arith.shrui %[[UP]], %[[C7]] : index
// CHECK-NEXT:    %k = arith.remui %block, %[[N]] : index
// CHECK-NEXT:    %[[Q:.*]] = arith.divui %block, %[[N]] : index
// CHECK-NEXT:    %[[C3:.*]] = payload.constant 3 : index
// CHECK-NEXT:    %j = arith.remui %[[Q]], %[[C3]] : index
// CHECK-NEXT:    %[[ALL:.*]] = arith.muli %[[N]], %[[C3]] : index
// CHECK-NEXT:    %i = arith.divui %block, %[[ALL]] : index
// CHECK:         kernel.load %x[%i, %{{.*}}] regs {{\[\[}}0, 1], [0, 2]] vec 4 where 0 <= %i < #s0
// CHECK:         kernel.store %v, %y[%i, %j, %{{.*}}] regs {{\[\[}}0, 0, 1], [0, 0, 2]] where 0 <= %{{.*}} < #s0 steps {{\[\[}}1], [2]]
// CHECK:         kernel.launch @sizes(%x, %y)
#l = #tile.layout<reg = [[1], [2]], lane = [[4], [8], [16], [32], [64]], warp = []>
tile.kernel @sizes(%x: memref<?x48xf32, #payload.extents<#s0, 48>>, %y: memref<2x3x?xf32, #payload.extents<2, 3, #s0>>) blocks (%i, %j, %k) in [2, 3, #s0 / 128] warps 1 {
  %zero = payload.constant 0.0 : f32
  %v = tile.load %x[%i, d0] where 0 <= %i < #s0 and 0 <= d0 < 48 else %zero : memref<?x48xf32, #payload.extents<#s0, 48>> -> tensor<128xf32, #l>
  tile.store %v, %y[%i, %j, d0 + %k * 128] where 0 <= d0 + %k * 128 < #s0 : tensor<128xf32, #l>, memref<2x3x?xf32, #payload.extents<2, 3, #s0>>
}
func.func @main(%x: tensor<?x48xf32, #payload.extents<#s0, 48>>) -> tensor<2x3x?xf32, #payload.extents<2, 3, #s0>> {
  %y = tile.launch @sizes(%x) : (tensor<?x48xf32, #payload.extents<#s0, 48>>) -> tensor<2x3x?xf32, #payload.extents<2, 3, #s0>>
  func.return %y : tensor<2x3x?xf32, #payload.extents<2, 3, #s0>>
}

// -----

// Tiles in shared memory are carried by pipelines of copies alone.

#l = #tile.layout<reg = [], lane = [[1], [2], [4], [8], [16]], warp = []>
#s = #tile.shared<offset = [[1], [2], [4], [8], [16]]>

// CHECK: error: scf.for: carries a tile in shared memory that no pipeline of copies brings
tile.kernel @carried(%x: memref<32xf32>, %y: memref<32xf32>) blocks () in [] warps 1 {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %v = tile.load %x[d0] : memref<32xf32> -> tensor<32xf32, #l>
  %s = tile.stage %v : tensor<32xf32, #l> -> tensor<32xf32, #s>
  %r = scf.for %k = %c0 to %c4 step %c1 iter_args(%a = %s) -> (tensor<32xf32, #s>) {
    scf.yield %a : tensor<32xf32, #s>
  }
  %w = tile.convert_layout %r : tensor<32xf32, #s> -> tensor<32xf32, #l>
  tile.store %w, %y[d0] : tensor<32xf32, #l>, memref<32xf32>
}
