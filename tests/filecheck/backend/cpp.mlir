// RUN: dl-opt %s -t cpp --split-input-file | filecheck %s

// Rows: a vector for each step of a loop, which loads, computes and adds up; then the lanes; loops end with the row, of
// which the last vector is loaded and stored in part.
// CHECK:       // --- kernels
// CHECK-NEXT:  // rows: 8 tasks
// CHECK-NEXT:  static void k0(const int begin, const int end, unsigned char* const shared, const float* __restrict__ x, float* __restrict__ y) {
// CHECK-NEXT:    for (int block = begin; block < end; ++block) {
// CHECK:         float r[32] = {};
// CHECK-NEXT:      for (int k = 0; k < 3; ++k) {
// CHECK-NEXT:      const int at = k * 32;
// CHECK-NEXT:      #pragma GCC unroll 8
// CHECK-NEXT:      for (int i = 0; i < 32; i += lanes) {
// CHECK:             const auto a = load_first(&x[block * 70 + at + i], 70 - (at + i), (float)0.0f);
// CHECK:             const auto e = expf(a);
// CHECK:             store(&r[i], load(&r[i]) + e);
// CHECK:         vec<float> t[1] = {all((float)0.0f)};
// CHECK:           t[0] = load(&r[i]) + t[0];
// CHECK:         float t1 = reduced_lanes(t, [](auto a, auto b) { return a + b; });
// CHECK-NEXT:    #pragma GCC unroll 8
// CHECK-NEXT:    for (int i = 0; i < 20; i += lanes) {
// CHECK:           const auto v = sqrtf(t1);
// CHECK:           store_first(&y[block * 20 + i], 20 - i, all((float)v));
// CHECK:       void k0_grid(char* const* a, const long long* n, int blocks, int threads, char* message) {
// CHECK-NEXT:    all_blocks(blocks, threads, [=](int begin, int end) { k0(begin, end, nullptr, (const float*)a[0], (float*)a[1]); });
// CHECK:       extern "C" void run(
kernel.func @rows(%x: memref<8x70xf32>, %y: memref<8x20xf32>) grid [8] warps 1 lanes 1 {
  %block = kernel.id block
  %0 = payload.constant 0 : index
  %3 = payload.constant 3 : index
  %1 = payload.constant 1 : index
  %32 = payload.constant 32 : index
  %z = payload.constant 0.0 : f32
  %s = payload.constant 0.0 : vector<32xf32>
  %r = scf.for %k = %0 to %3 step %1 iter_args(%acc = %s) -> (vector<32xf32>) {
    %at = arith.muli %k, %32 : index
    %a = kernel.load %x[%block, %at] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]] where 0 <= %at < 70 steps [[1], [2], [4], [8], [16]] else %z : memref<8x70xf32> -> vector<32xf32>
    %e = math.exp %a : vector<32xf32>
    %n = arith.addf %acc, %e : vector<32xf32>
    scf.yield %n : vector<32xf32>
  }
  %t = kernel.reduce_registers add %r over [0, 1, 2, 3, 4] : vector<32xf32> -> vector<1xf32>
  %u = kernel.extract %t[0] : vector<1xf32>
  %all = kernel.splat %u : f32 -> vector<32xf32>
  %v = math.sqrt %all : vector<32xf32>
  kernel.store %v, %y[%block, %0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]] where 0 <= %0 < 20 steps [[1], [2], [4], [8], [16]] : memref<8x20xf32>, vector<32xf32>
}

// -----

// Sums of rows: a loop over rows, and within each the number of a register is taken apart once. What lies two pages ahead is
// asked for.
// CHECK:       // --- kernels
// CHECK:         for (int row = 0; row < 128; row += 64) {
// CHECK:           for (int i = row; i < row + 64; i += lanes) {
// CHECK:             __builtin_prefetch(&x[(i - row) + (row >> 6) * 100] + 2048, 0, locality);
// CHECK-NEXT:        const auto a = load(&x[(i - row) + (row >> 6) * 100]);
// CHECK:           t[row / 64] = reduced_lanes(
kernel.func @sums_of_rows(%x: memref<2x100xf32>, %y: memref<2xf32>) grid [1] warps 1 lanes 1 {
  %0 = payload.constant 0 : index
  %a = kernel.load %x[%0, %0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 0]] : memref<2x100xf32> -> vector<128xf32>
  %t = kernel.reduce_registers add %a over [0, 1, 2, 3, 4, 5] : vector<128xf32> -> vector<2xf32>
  kernel.store %t, %y[%0] regs [[1]] : memref<2xf32>, vector<2xf32>
}

// -----

// What is the same for all blocks is computed in front of the loop over them: a row that all add, and its sum.
// CHECK:       static void k0(const int begin, const int end,
// CHECK:         float t1 = reduced_lanes(
// CHECK:         for (int block = begin; block < end; ++block) {
// CHECK:           const auto b = load(&x[block * 64 + i]);
// CHECK:           const auto sum = b + t1;
kernel.func @common(%w: memref<64xf32>, %x: memref<4x64xf32>, %y: memref<4x64xf32>) grid [4] warps 1 lanes 1 {
  %0 = payload.constant 0 : index
  %block = kernel.id block
  %a = kernel.load %w[%0] regs [[1], [2], [4], [8], [16], [32]] : memref<64xf32> -> vector<64xf32>
  %t = kernel.reduce_registers add %a over [0, 1, 2, 3, 4, 5] : vector<64xf32> -> vector<1xf32>
  %u = kernel.extract %t[0] : vector<1xf32>
  %all = kernel.splat %u : f32 -> vector<64xf32>
  %b = kernel.load %x[%block, %0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32]] : memref<4x64xf32> -> vector<64xf32>
  %sum = arith.addf %b, %all : vector<64xf32>
  kernel.store %sum, %y[%block, %0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32]] : memref<4x64xf32>, vector<64xf32>
}

// -----

// A product of matrices reads its operands where they lie, by strides, up to where they end: %w has columns as rows. What
// was computed is an array. Into zero it is written as it is, without reading.
// CHECK:       block_fma(
// CHECK:       // --- kernels
// CHECK:           store(&e[i], a2 + a2);
// CHECK:         for (int block = begin; block < end; ++block) {
// CHECK:           panel_fma<8, 16, 4, 0, true>(c, &x[0], 8, 2, &w[4], 1, 8);
// CHECK-NEXT:    // cpp.mlir:
// CHECK-NEXT:      panel_fma<8, 16, 4>(c, &x[4], 8, 1, &w[4], 1, 8, {{.*}}0, min<long>(8, 5)}, {0, 16}, {0, 4{{.*}});
// CHECK:         panel_fma<8, 16, 4>(c, e, 4, 1, &w[4], 1, 8);
kernel.func @product(%x: memref<8x8xf32>, %w: memref<16x8xf32>, %y: memref<8x16xf32>) grid [1] warps 1 lanes 1 {
  %0 = payload.constant 0 : index
  %4 = payload.constant 4 : index
  %z = payload.constant 0.0 : f32
  %a = kernel.load %x[%0, %0] regs [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]] : memref<8x8xf32> -> vector<32xf32>
  %wt = kernel.load %w[%0, %4] regs [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0], [8, 0]] : memref<16x8xf32> -> vector<64xf32>
  %b = kernel.shuffle_registers %wt from [0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 61, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62, 3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47, 51, 55, 59, 63] : vector<64xf32> -> vector<64xf32>
  %s = payload.constant 0.0 : vector<128xf32>
  %c = kernel.panel_fma %a, %b, %s depth 4 : vector<32xf32>, vector<64xf32>, vector<128xf32>
  %a1 = kernel.load %x[%0, %4] regs [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]] where 0 <= %0 < 5 steps [[0], [0], [1], [2], [4]] else %z : memref<8x8xf32> -> vector<32xf32>
  %d = kernel.panel_fma %a1, %b, %c depth 4 : vector<32xf32>, vector<64xf32>, vector<128xf32>
  %a2 = kernel.load %x[%0, %4] regs [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]] : memref<8x8xf32> -> vector<32xf32>
  %e = arith.addf %a2, %a2 : vector<32xf32>
  %f = kernel.panel_fma %e, %b, %d depth 4 : vector<32xf32>, vector<64xf32>, vector<128xf32>
  kernel.store %f, %y[%0, %0] regs [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0]] : memref<8x16xf32>, vector<128xf32>
}
