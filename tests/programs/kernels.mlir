// Kernels written by hand: a row reduction, a product and a pointwise function.

// The root mean square of each row, kept in registers.
kernel.func @rmsnorm(%x: memref<32x2048xf32>, %w: memref<2048xf32>, %y: memref<32x2048xf32>) grid [32] warps 8 {
  %part = kernel.shared : memref<8xf32, "shared">
  %lane = kernel.id lane
  %warp = kernel.id warp
  %row = kernel.id block
  %c4 = payload.constant 4 : index
  %c128 = payload.constant 128 : index
  %a = arith.muli %lane, %c4 : index
  %b = arith.muli %warp, %c128 : index
  %col = arith.addi %a, %b : index
  %xt = kernel.load %x[%row, %col] regs [[0, 1], [0, 2], [0, 1024]] vec 4 : memref<32x2048xf32> -> vector<8xf32>
  %sq = arith.mulf %xt, %xt : vector<8xf32>
  %s = kernel.reduce_registers add %sq over [0, 1, 2] : vector<8xf32> -> vector<1xf32>
  %s1 = kernel.shuffle_xor %s by 16 : vector<1xf32>
  %t1 = arith.addf %s, %s1 : vector<1xf32>
  %s2 = kernel.shuffle_xor %t1 by 8 : vector<1xf32>
  %t2 = arith.addf %t1, %s2 : vector<1xf32>
  %s4 = kernel.shuffle_xor %t2 by 4 : vector<1xf32>
  %t4 = arith.addf %t2, %s4 : vector<1xf32>
  %s8 = kernel.shuffle_xor %t4 by 2 : vector<1xf32>
  %t8 = arith.addf %t4, %s8 : vector<1xf32>
  %s16 = kernel.shuffle_xor %t8 by 1 : vector<1xf32>
  %t16 = arith.addf %t8, %s16 : vector<1xf32>
  %zero = payload.constant 0 : index
  %first = payload.cmp eq %lane, %zero : index
  kernel.store %t16, %part[%warp] if %first : memref<8xf32, "shared">, vector<1xf32>
  %parts = kernel.load %part[%zero] regs [[1], [2], [4]] vec 4 : memref<8xf32, "shared"> -> vector<8xf32>
  %sum = kernel.reduce_registers add %parts over [0, 1, 2] : vector<8xf32> -> vector<1xf32>
  %inv = payload.constant 0.00048828125 : vector<1xf32>
  %eps = payload.constant 1.0e-06 : vector<1xf32>
  %0 = arith.mulf %sum, %inv : vector<1xf32>
  %1 = arith.addf %0, %eps : vector<1xf32>
  %r = math.rsqrt %1 : vector<1xf32>
  %rb = kernel.shuffle_registers %r from [0, 0, 0, 0, 0, 0, 0, 0] : vector<1xf32> -> vector<8xf32>
  %n = arith.mulf %xt, %rb : vector<8xf32>
  %wt = kernel.load %w[%col] regs [[1], [2], [1024]] vec 4 : memref<2048xf32> -> vector<8xf32>
  %o = arith.mulf %n, %wt : vector<8xf32>
  kernel.store %o, %y[%row, %col] regs [[0, 1], [0, 2], [0, 1024]] vec 4 : memref<32x2048xf32>, vector<8xf32>
}

// A register tile of four by four per thread: 16 x 16 threads compute 64 x 64 of a product over 16.
kernel.func @gemm(%a: memref<16x64xf32>, %b: memref<16x64xf32>, %c: memref<64x64xf32>) grid [1] warps 8 {
  %as = kernel.shared : memref<1024xf32, "shared">
  %bs = kernel.shared : memref<1024xf32, "shared">
  %thread = kernel.id thread
  %c0 = payload.constant 0 : index
  %c1 = payload.constant 1 : index
  %c4 = payload.constant 4 : index
  %c16 = payload.constant 16 : index
  %c64 = payload.constant 64 : index
  %row = arith.divsi %thread, %c16 : index
  %col = arith.remsi %thread, %c16 : index
  %m = arith.muli %row, %c4 : index
  %n = arith.muli %col, %c4 : index
  %at = arith.muli %thread, %c4 : index
  %av = kernel.load %a[%row, %n] regs [[0, 1], [0, 2]] vec 4 : memref<16x64xf32> -> vector<4xf32>
  %bv = kernel.load %b[%row, %n] regs [[0, 1], [0, 2]] vec 4 : memref<16x64xf32> -> vector<4xf32>
  kernel.store %av, %as[%at] regs [[1], [2]] vec 4 : memref<1024xf32, "shared">, vector<4xf32>
  kernel.store %bv, %bs[%at] regs [[1], [2]] vec 4 : memref<1024xf32, "shared">, vector<4xf32>
  %zero = payload.constant 0.0 : vector<16xf32>
  %acc = scf.for %k = %c0 to %c16 step %c1 iter_args(%s = %zero) -> (vector<16xf32>) {
    %ko = arith.muli %k, %c64 : index
    %ka = arith.addi %ko, %m : index
    %kb = arith.addi %ko, %n : index
    %x = kernel.load %as[%ka] regs [[1], [2]] vec 4 : memref<1024xf32, "shared"> -> vector<4xf32>
    %y = kernel.load %bs[%kb] regs [[1], [2]] vec 4 : memref<1024xf32, "shared"> -> vector<4xf32>
    %t = kernel.outer_fma %x, %y, %s rows [2, 3] cols [0, 1] : vector<4xf32>, vector<4xf32>, vector<16xf32>
    scf.yield %t : vector<16xf32>
  }
  kernel.store %acc, %c[%m, %n] regs [[0, 1], [0, 2], [1, 0], [2, 0]] vec 4 : memref<64x64xf32>, vector<16xf32>
}

// bf16 in memory, f32 in between; a tail that does not fill the block.
kernel.func @narrow(%x: memref<1000xbf16>, %y: memref<1000xbf16>) grid [2] warps 2 {
  %thread = kernel.id thread
  %block = kernel.id block
  %c8 = payload.constant 8 : index
  %c512 = payload.constant 512 : index
  %0 = arith.muli %block, %c512 : index
  %1 = arith.muli %thread, %c8 : index
  %at = arith.addi %0, %1 : index
  %zero = payload.constant 0.0 : bf16
  %v = kernel.load %x[%at] regs [[1], [2], [4]] vec 8 where 0 <= %at < 1000 steps [[0], [0], [0]] else %zero : memref<1000xbf16> -> vector<8xbf16>
  %w = payload.cast %v : vector<8xbf16> -> vector<8xf32>
  %t = math.tanh %w : vector<8xf32>
  %n = payload.cast %t : vector<8xf32> -> vector<8xbf16>
  kernel.store %n, %y[%at] regs [[1], [2], [4]] vec 8 where 0 <= %at < 1000 steps [[0], [0], [0]] : memref<1000xbf16>, vector<8xbf16>
}
