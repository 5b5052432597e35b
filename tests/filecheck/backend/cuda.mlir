// RUN: dl-opt %s -p cse,dce,kernel-allocate-shared,kernel-insert-barriers -t 'cuda{arch=sm_90a}' --split-input-file | filecheck %s

// A row reduction: names, ids, a wide load, one loop for pointwise operations, a fold, a butterfly, shared memory.
// CHECK: // --- helpers
// CHECK-NEXT: static __device__ void ld4(float* r, const float* p) { *(float4*)r = *(const float4*)p; }
// CHECK: // --- kernels
// CHECK-NEXT: // rows: 2 blocks of 64 threads, 8 bytes of shared memory
// CHECK-NEXT: // schedule = "block = [1, 256]"
// CHECK-NEXT: extern "C" __global__ void __launch_bounds__(64) k0(const float* __restrict__ x, float* __restrict__ y) {
// CHECK-NEXT:   extern __shared__ __align__(1024) unsigned char smem[];
// CHECK-NEXT:   float* const part = (float*)smem;
// CHECK-NEXT:   const int row = blockIdx.x;
// CHECK-NEXT:   const int lane = threadIdx.x % 32;
// CHECK-NEXT:   const int warp = threadIdx.x / 32;
// CHECK-NEXT:   const int thread = threadIdx.x;
// CHECK-NEXT:   const int col = thread * 4;
// CHECK-NEXT:   // model.py:7
// CHECK-NEXT:   __align__(16) float xt[4];
// CHECK-NEXT:   ld4(xt, &x[row * 256 + col]);
// CHECK-NEXT:   float sq[4];
// CHECK-NEXT:   #pragma unroll
// CHECK-NEXT:   for (int i = 0; i < 4; ++i) {
// CHECK-NEXT:     // model.py:8
// CHECK-NEXT:     const float twice = xt[i] + xt[i];
// CHECK-NEXT:     sq[i] = expf(twice * -1.5f) - twice;
// CHECK-NEXT:   }
// CHECK-NEXT:   float s = sq[0];
// CHECK-NEXT:   #pragma unroll
// CHECK-NEXT:   for (int i = 1; i < 4; ++i) s += sq[i];
// CHECK-NEXT:   #pragma unroll
// CHECK-NEXT:   for (int m = 16; m >= 8; m /= 2) s += __shfl_xor_sync(0xffffffffu, s, m);
// CHECK-NEXT:   const bool first = lane == 0;
// CHECK-NEXT:   if (first) part[warp] = s;
// CHECK-NEXT:   __syncthreads();
// CHECK-NEXT:   const float total = part[0];
// CHECK-NEXT:   y[row] = total;
// CHECK-NEXT: }
kernel.func @rows(%x: memref<2x256xf32>, %y: memref<2xf32>) grid [2] warps 2 attributes {schedule = "block = [1, 256]"} {
  %part = kernel.shared : memref<2xf32, "shared">
  %row = kernel.id block
  %lane = kernel.id lane
  %warp = kernel.id warp
  %thread = kernel.id thread
  %c4 = payload.constant 4 : index
  %c0 = payload.constant 0 : index
  %col = arith.muli %thread, %c4 : index
  %xt = kernel.load %x[%row, %col] regs [[0, 1], [0, 2]] vec 4 : memref<2x256xf32> -> vector<4xf32> loc("src/model.py":7:3)
  %twice = arith.addf %xt, %xt : vector<4xf32> loc("src/model.py":8:3)
  %f = payload.constant -1.5 : vector<4xf32>
  %0 = arith.mulf %twice, %f : vector<4xf32> loc("src/model.py":8:3)
  %1 = math.exp %0 : vector<4xf32> loc("src/model.py":8:3)
  %sq = arith.subf %1, %twice : vector<4xf32> loc("src/model.py":8:3)
  %s = kernel.reduce_registers add %sq over [0, 1] : vector<4xf32> -> vector<1xf32> loc("src/model.py":8:3)
  %a = kernel.shuffle_xor %s by 16 : vector<1xf32> loc("src/model.py":8:3)
  %b = arith.addf %s, %a : vector<1xf32> loc("src/model.py":8:3)
  %c = kernel.shuffle_xor %b by 8 : vector<1xf32> loc("src/model.py":8:3)
  %d = arith.addf %b, %c : vector<1xf32> loc("src/model.py":8:3)
  %first = payload.cmp eq %lane, %c0 : index loc("src/model.py":8:3)
  kernel.store %d, %part[%warp] if %first : memref<2xf32, "shared">, vector<1xf32> loc("src/model.py":8:3)
  %total = kernel.load %part[%c0] : memref<2xf32, "shared"> -> vector<1xf32> loc("src/model.py":8:3)
  kernel.store %total, %y[%row] : memref<2xf32>, vector<1xf32> loc("src/model.py":8:3)
}

// -----

// Reserved words get other names; a buffer of 2^31 elements is indexed with 64 bits.
// CHECK: k0(const bf16* __restrict__ float5, bf16* __restrict__ smem1) {
// CHECK-NEXT: const long long i1 = blockIdx.x;
// CHECK-NEXT: // cuda.mlir:
// CHECK-NEXT: const bf16 v = float5[i1 * 1024 + 5];
// CHECK-NEXT: // cuda.mlir:
// CHECK-NEXT: smem1[i1 * 1024 + 5] = v;
kernel.func @wide(%float: memref<2097152x1024xbf16>, %smem: memref<2097152x1024xbf16>) grid [2097152] warps 1 {
  %i = kernel.id block
  %c5 = payload.constant 5 : index
  %v = kernel.load %float[%i, %c5] : memref<2097152x1024xbf16> -> vector<1xbf16>
  kernel.store %v, %smem[%i, %c5] : memref<2097152x1024xbf16>, vector<1xbf16>
}

// -----

// Conditions: what the ranges decide is not asked, a fill value stands in the else.
// CHECK: const int at = lane * 4;
// CHECK: if (at >= 3 && at < 100) ld4(v, &x[at]);
// CHECK-NEXT: else fill4(v, -inf32());
// CHECK: const float w = lane < 7 ? x[lane] : -inf32();
// CHECK: if (few) {
// CHECK-NEXT: // cuda.mlir:
// CHECK-NEXT: y[lane] = w;
// CHECK-NEXT: }
kernel.func @conditions(%x: memref<128xf32>, %y: memref<128xf32>) grid [1] warps 1 {
  %lane = kernel.id lane
  %c4 = payload.constant 4 : index
  %c7 = payload.constant 7 : index
  %at = arith.muli %lane, %c4 : index
  %low = payload.constant 0xff800000 : f32
  %v = kernel.load %x[%at] regs [[1], [2]] vec 4 where 3 <= %at < 100 steps [[0], [0]] else %low : memref<128xf32> -> vector<4xf32>
  %w = kernel.load %x[%lane] where 0 <= %lane < 7 else %low : memref<128xf32> -> vector<1xf32>
  kernel.store %v, %y[%at] regs [[1], [2]] vec 4 : memref<128xf32>, vector<4xf32>
  %few = payload.cmp lt %lane, %c7 : index
  scf.if %few {
    kernel.store %w, %y[%lane] : memref<128xf32>, vector<1xf32>
  }
}

// -----

// Offsets in shared memory that overlap are combined by exclusive or; one that steps apart stays one term.
// CHECK: ld2(&a[i], &s[lane ^ (i * 16)]);
// CHECK: b[i] = s[lane ^ (((i & 1) * 3) ^ ((i >> 1) * 6))];
kernel.func @exclusive(%y: memref<128xf32>) grid [1] warps 1 {
  %s = kernel.shared : memref<128xf32, "shared">
  %lane = kernel.id lane
  %a = kernel.load %s[%lane] xor regs [[1], [32]] vec 2 : memref<128xf32, "shared"> -> vector<4xf32>
  %b = kernel.load %s[%lane] xor regs [[3], [6]] : memref<128xf32, "shared"> -> vector<4xf32>
  %c = arith.addf %a, %b : vector<4xf32>
  kernel.store %c, %y[%lane] regs [[1], [2]] : memref<128xf32>, vector<4xf32>
}

// -----

#s0 = #payload.symbol<s0[1:65536]>
#s1 = #payload.symbol<s1[1:65536]>

// Sizes known at run time are parameters behind the buffers, only those that addresses and checks need. More than 2^30
// elements are possible, so they and all indices have 64 bits.
// CHECK: // sizes: ceil(s0 / 8) * 4 blocks of 32 threads
// CHECK-NEXT: k0(const float* __restrict__ x, float* __restrict__ y, long long s1, long long s0) {
// CHECK: const long long at = (row * 4 + block) * s1 + lane;
// CHECK: a[i] = row + i * 8 < s0 ? x[at + i * 32 * s1] : 0.0f;
// CHECK: const long long up = s0 + 7;
// CHECK-NEXT: const long long many = up / 8;
// CHECK: y[lane * s1 + many] = a[0];
kernel.func @sizes(%x: memref<?x4x?xf32, #payload.extents<#s0, 4, #s1>>, %y: memref<?x?xf32, #payload.extents<#s0, #s1>>) grid [#s0 / 8, 4] warps 1 {
  %block = kernel.id block
  %lane = kernel.id lane
  %zero = payload.constant 0.0 : f32
  %7 = payload.constant 7 : index
  %8 = payload.constant 8 : index
  %row = arith.muli %lane, %8 : index
  %a = kernel.load %x[%row, %block, %lane] regs [[8, 0, 0]] where 0 <= %row < #s0 steps [[8]] else %zero : memref<?x4x?xf32, #payload.extents<#s0, 4, #s1>> -> vector<2xf32>
  %n = payload.extent #s0 : index
  %up = arith.addi %n, %7 : index
  %many = arith.divui %up, %8 : index
  %b = kernel.shuffle_registers %a from [0] : vector<2xf32> -> vector<1xf32>
  kernel.store %b, %y[%lane, %many] : memref<?x?xf32, #payload.extents<#s0, #s1>>, vector<1xf32>
}

// -----

// An assertion says where it fails and with which number, and stops the kernel.
// CHECK: static __device__ long long asserted(long long x, bool holds, const char* what) {
// CHECK-NEXT: if (!holds) { printf("%s: %lld\n", what, x); asm volatile("trap;"); }
// CHECK: (int)asserted(n[i], below, "model.py:7: \"below\"");
kernel.func @assertions(%x: memref<64xi32>) grid [1] warps 1 {
  %lane = kernel.id lane
  %nine = payload.constant 9 : vector<2xi32>
  %n = kernel.load %x[%lane] regs [[32]] : memref<64xi32> -> vector<2xi32>
  %below = payload.cmp lt %n, %nine : vector<2xi32>
  %m = payload.assert %n where %below, "\"below\"" at "model.py:7" : vector<2xi32>
  kernel.store %m, %x[%lane] regs [[32]] : memref<64xi32>, vector<2xi32>
}
