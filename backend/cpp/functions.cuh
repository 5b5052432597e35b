// Helpers: device functions that generated kernels call. Each section begins with a line
//     //// KEY needs KEYS for TABLE
// KEY is the key of the helper, KEYS are the keys of helpers that it calls. A section with a table is a template: it is
// instantiated for each row of the table, which assigns a text to each $word. A table is a name in device.py, or
// `word = text; word = text | ...`. The text after `//// host` replaces inline assembly in the emulator; it has no
// function head if that is the same.

//// ld$n.$t.$bytes needs $struct for accesses
static __device__ void ld$n($t* r, const $t* p) { *($word*)r = *(const $word*)p; }

//// st$n.$t.$bytes needs $struct for accesses
static __device__ void st$n($t* p, const $t* r) { *($word*)p = *(const $word*)r; }

//// fill$n.$t.$bytes needs $struct for accesses
static __device__ void fill$n($t* r, $t v) { for (int i = 0; i < $n; ++i) r[i] = v; }

//// to_f32.bf16 needs bf16
static __device__ float to_f32(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }

//// to_bf16 needs bf16
static __device__ bf16 to_bf16(float x) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)); return r; }
//// host
{
  unsigned u; __builtin_memcpy(&u, &x, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{(unsigned short)0x7fff};
  return bf16{(unsigned short)((u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
}

//// round_bf16
// Rounds x to bf16 and returns it as f32: cvt.bf16x2 puts the result into the upper half. The conversion of one number
// is slower, and makes ptxas serialize wgmma instructions (warning C7514) unless it can pair two conversions.
static __device__ float round_bf16(float x) {
  unsigned r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(x), "f"(0.0f)); return __uint_as_float(r);
}
//// host
{
  unsigned u; __builtin_memcpy(&u, &x, 4);
  u = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fff0000u : (u + 0x7fffu + ((u >> 16) & 1)) & 0xffff0000u;
  __builtin_memcpy(&x, &u, 4); return x;
}

//// to_f32.f16 needs f16
static __device__ float to_f32(f16 x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits)); return r; }
//// host
{
  const unsigned sign = (unsigned)(x.bits & 0x8000) << 16, e = (x.bits >> 10) & 31, f = x.bits & 0x3ff;
  unsigned u = sign | (f << 13) | (e == 31 ? 0x7f800000u : (e + 112) << 23);
  if (e == 0) { const float v = (float)f * 5.9604644775390625e-8f; __builtin_memcpy(&u, &v, 4); u |= sign; }
  float r; __builtin_memcpy(&r, &u, 4); return r;
}

//// to_f16 needs f16
// Uses the conversion of two numbers: that of one, after wgmma instructions that are outstanding across iterations,
// makes ptxas serialize them (warning C7514).
static __device__ f16 to_f16(float x) {
  unsigned r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(0.0f), "f"(x));
  return {(unsigned short)r};
}
//// host
{
  unsigned u; __builtin_memcpy(&u, &x, 4);
  const unsigned sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return f16{(unsigned short)0x7fff};
  if (a >= 0x477ff000u) return f16{(unsigned short)(sign | 0x7c00u)};
  if (a < 0x38800000u) {
    if (a < 0x33000000u) return f16{(unsigned short)sign};
    const unsigned shift = 126u - (a >> 23), full = (a & 0x7fffffu) | 0x800000u;
    const unsigned half_up = 1u << (shift - 1), kept = full >> shift, rest = full & ((1u << shift) - 1);
    return f16{(unsigned short)(sign | (kept + (rest > half_up || (rest == half_up && (kept & 1)))))};
  }
  const unsigned r = a + 0xfffu + ((a >> 13) & 1) - 0x38000000u;
  return f16{(unsigned short)(sign | (r >> 13))};
}

//// round_tf32
static __device__ float round_tf32(float x) {
  unsigned r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return __uint_as_float(r);
}
//// host
{
  unsigned u; __builtin_memcpy(&u, &x, 4);
  u = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : (u + 0x1000u) & 0xffffe000u;
  __builtin_memcpy(&x, &u, 4); return x;
}

//// exp2_approx
static __device__ float exp2_approx(float x) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
//// host
{ return x < -126.0f ? 0.0f : __builtin_exp2f(x); }

//// asserted
static __device__ long long asserted(long long x, bool holds, const char* what) {
  if (!holds) { printf("%s: %lld\n", what, x); asm volatile("trap;"); }
  return x;
}
//// host
{ if (!holds) emu_assert(what, x); return x; }

//// print_line
template <class... Values> static __device__ void print_line(const char* format, Values... values) {
  printf(format, values...);
  asm volatile("" ::: "memory");
}
//// host
{ emu_print(format, values...); }

//// inf32
static __device__ float inf32() { return __uint_as_float(0x7f800000u); }

//// nan32
static __device__ float nan32() { return __uint_as_float(0x7fc00000u); }

//// inf64
static __device__ double inf64() { return __longlong_as_double(0x7ff0000000000000ll); }

//// nan64
static __device__ double nan64() { return __longlong_as_double(0x7ff8000000000000ll); }

//// floor_div needs int_div.long long; int_rem.long long
static __device__ long long floor_div(long long a, long long b) { return int_div(a, b) - (int_rem(a, b) != 0 && (a < 0) != (b < 0)); }

//// ceil_div needs int_div.long long; int_rem.long long
static __device__ long long ceil_div(long long a, long long b) { return int_div(a, b) + (int_rem(a, b) != 0 && (a < 0) == (b < 0)); }

//// int_pow
static __device__ long long int_pow(long long b, long long n) {
  if (n < 0) return b == 1 ? 1 : b == -1 ? (n % 2 ? -1 : 1) : 0;
  unsigned long long r = 1, p = (unsigned long long)b;
  for (; n; n >>= 1, p *= p) r = n & 1 ? r * p : r;
  return (long long)r;
}

//// max_nan.float
static __device__ float max_nan(float a, float b) { float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
//// host
{ return a != a || a > b ? a : b; }

//// max_nan.double
static __device__ double max_nan(double a, double b) { return a != a || a > b ? a : b; }

//// min_nan.float
static __device__ float min_nan(float a, float b) { float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
//// host
{ return a != a || a < b ? a : b; }

//// min_nan.double
static __device__ double min_nan(double a, double b) { return a != a || a < b ? a : b; }

//// log_add_exp.float
static __device__ float log_add_exp(float a, float b) {
  return a == b ? a + 0.6931472f : (a < b ? b : a) + log1pf(expf(-fabsf(a - b)));
}

//// log_add_exp.double
static __device__ double log_add_exp(double a, double b) {
  return a == b ? a + 0.6931471805599453 : (a < b ? b : a) + log1p(exp(-fabs(a - b)));
}

// Two's complement arithmetic on signed integers: overflow wraps around, which is undefined in C++.

//// wrap_add.$t for t = int; u = unsigned | t = long long; u = unsigned long long
static __device__ $t wrap_add($t a, $t b) { return ($t)(($u)a + ($u)b); }

//// wrap_sub.$t for t = int; u = unsigned | t = long long; u = unsigned long long
static __device__ $t wrap_sub($t a, $t b) { return ($t)(($u)a - ($u)b); }

//// wrap_mul.$t for t = int; u = unsigned | t = long long; u = unsigned long long
static __device__ $t wrap_mul($t a, $t b) { return ($t)(($u)a * ($u)b); }

// Integer division that is defined for all operands, because lanes without an element divide garbage. The quotient by
// zero is all ones. The smallest number divided by -1 wraps around.

//// int_div.$t for t = int; u = unsigned | t = long long; u = unsigned long long
static __device__ $t int_div($t a, $t b) { return b == 0 ? -1 : b == -1 ? ($t)(0 - ($u)a) : a / b; }

//// int_div.$u for u = unsigned | u = unsigned long long
static __device__ $u int_div($u a, $u b) { return b == 0 ? ~($u)0 : a / b; }

//// int_rem.$t for t = int; u = unsigned | t = long long; u = unsigned long long
static __device__ $t int_rem($t a, $t b) { return b == 0 ? -1 : b == -1 ? 0 : a % b; }

//// int_rem.$u for u = unsigned | u = unsigned long long
static __device__ $u int_rem($u a, $u b) { return b == 0 ? ~($u)0 : a % b; }

// Shifts that are defined for all operands. A shift by at least the width of the type shifts out all bits, and so does
// a shift by a negative number. C++ leaves these undefined, and left shifts of negative numbers.

//// shift_left.$t for t = int; u = unsigned; n = 32; m = 31 | t = long long; u = unsigned long long; n = 64; m = 63
static __device__ $t shift_left($t a, $t b) { return ($u)b < $n ? ($t)(($u)a << b) : 0; }

//// shift_left.$u for u = unsigned; n = 32 | u = unsigned long long; n = 64
static __device__ $u shift_left($u a, $u b) { return ($u)b < $n ? ($u)(($u)a << b) : 0; }

//// shift_right.$t for t = int; u = unsigned; n = 32; m = 31 | t = long long; u = unsigned long long; n = 64; m = 63
static __device__ $t shift_right($t a, $t b) { return a >> (($u)b < $n ? b : $m); }

//// shift_right.$u for u = unsigned; n = 32 | u = unsigned long long; n = 64
static __device__ $u shift_right($u a, $u b) { return b < $n ? a >> b : 0; }

//// bits_to_float
static __device__ float bits_to_float(int x) { return __int_as_float(x); }

//// bits_to_int
static __device__ int bits_to_int(float x) { return __float_as_int(x); }

//// bits_to_double
static __device__ double bits_to_double(long long x) { return __longlong_as_double(x); }

//// bits_to_long
static __device__ long long bits_to_long(double x) { return __double_as_longlong(x); }

// Asynchronous copies from global to shared memory; `_or_zero` writes zeros if `inside` is false.

//// copy_async$n for m = ca; n = 4 | m = ca; n = 8 | m = cg; n = 16
static __device__ void copy_async$n(void* target, const void* source) {
  asm volatile("cp.async.$m.shared.global [%0], [%1], $n;" :: "r"((unsigned)__cvta_generic_to_shared(target)), "l"(source) : "memory");
}
//// host
{ emu_copy_async(target, source, $n, true); }

//// copy_async${n}_or_zero for m = ca; n = 4 | m = ca; n = 8 | m = cg; n = 16
static __device__ void copy_async${n}_or_zero(void* target, const void* source, bool inside) {
  asm volatile("cp.async.$m.shared.global [%0], [%1], $n, %2;" :: "r"((unsigned)__cvta_generic_to_shared(target)), "l"(source), "r"(inside ? $n : 0) : "memory");
}
//// host
{ emu_copy_async(target, source, $n, inside); }

//// copy_async_commit
static __device__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
//// host
{ emu_copy_commit(); }

//// copy_async_wait
template <int n> static __device__ void copy_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory"); }
//// host
{ emu_copy_wait(n); }

//// mbar_init
static __device__ __forceinline__ void mbar_init(unsigned long long* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(arrivals) : "memory");
}
//// host
{ emu_mbar_init(barrier, arrivals); }

//// mbar_expect
static __device__ __forceinline__ void mbar_expect(unsigned long long* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(bytes) : "memory");
}
//// host
{ emu_mbar_arrive(barrier, bytes); }

//// mbar_arrive
static __device__ __forceinline__ void mbar_arrive(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"((unsigned)__cvta_generic_to_shared(barrier)) : "memory");
}
//// host
{ emu_mbar_arrive(barrier, 0); }

//// fence_mbar_init
static __device__ __forceinline__ void fence_mbar_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" :: : "memory");
}
//// host
{ emu_fence_mbar_init(); }

//// fence_async
static __device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" :: : "memory");
}
//// host
{ emu_fence_async(); }

//// mbar_wait$n for n =; m = | n = _cluster; m = .acquire.cluster
static __device__ __forceinline__ void mbar_wait$n(unsigned long long* barrier, int parity) {
  for (unsigned done = 0; !done;)
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity$m.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(parity) : "memory");
}
//// host
{ emu_mbar_wait(barrier, parity); }

//// group_barrier
template <int threads> static __device__ __forceinline__ void group_barrier(int number) {
  asm volatile("bar.sync %0, %1;" :: "r"(number), "n"(threads) : "memory");
}
//// host
{ emu_named_barrier(0, "group_barrier", number, threads); }

//// take_registers
template <int n> static __device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(n)); }
//// host
{ emu_set_registers(n, true); }

//// give_registers
template <int n> static __device__ __forceinline__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(n)); }
//// host
{ emu_set_registers(n, false); }

//// cluster_barrier
static __device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" :: : "memory");
}
//// host
{ emu_cluster_barrier(); }

//// mbar_arrive_at
static __device__ __forceinline__ void mbar_arrive_at(unsigned long long* barrier, int rank) {
  asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\nmbarrier.arrive.release.cluster.shared::cluster.b64 _, [at];\n}" :: "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(rank) : "memory");
}
//// host
{ emu_mbar_arrive_at(barrier, rank, false); }

//// mbar_signal_at
static __device__ __forceinline__ void mbar_signal_at(unsigned long long* barrier, int rank) {
  asm volatile("{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [at];\n}" :: "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(rank) : "memory");
}
//// host
{ emu_mbar_arrive_at(barrier, rank, true); }

//// cluster_peer
// The pointer is generic, so ordinary loads read through it.
template <class T> static __device__ __forceinline__ const T* cluster_peer(const T* p, int rank) {
  const T* peer;
  asm("mapa.u64 %0, %1, %2;" : "=l"(peer) : "l"(p), "r"(rank));
  return peer;
}
//// host
{ return (const T*)emu_cluster_peer(p, rank); }

//// bulk_commit
static __device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" :: : "memory");
}
//// host
{ emu_bulk_commit(); }

//// bulk_wait
template <int n> static __device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" :: "n"(n) : "memory"); }
//// host
{ emu_bulk_wait(n); }

//// bulk_wait_read
template <int n> static __device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(n) : "memory"); }
//// host
{ emu_bulk_wait(n); }

//// matrix
static __device__ __forceinline__ unsigned long long matrix(const void* p, unsigned leading, unsigned stride, unsigned swizzle) {
  const unsigned at = (unsigned)__cvta_generic_to_shared(p);
  return ((at & 0x3ffff) >> 4) | ((unsigned long long)(leading >> 4) << 16) | ((unsigned long long)(stride >> 4) << 32) | ((unsigned long long)(swizzle == 128 ? 1 : swizzle == 64 ? 2 : 3) << 62);
}

//// wgmma_fence
static __device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" :: : "memory");
}
//// host
{ emu_wgmma_fence(); }

//// wgmma_commit
static __device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" :: : "memory");
}
//// host
{ emu_wgmma_commit(); }

//// wgmma_wait
template <int n> static __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(n) : "memory"); }
//// host
{ emu_wgmma_wait(n); }

//// wgmma_wait_for
// The "memory" clobber does not cover registers. The accumulators are operands of the asm, so that the compiler does
// not read them before the wait (as CUTLASS's warpgroup_fence_operand).
template <int pending = 0, int count> static __device__ __forceinline__ void wgmma_wait_for(float (&d)[count]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(pending) : "memory");
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}
//// host
template <int pending = 0, int count> static inline void wgmma_wait_for(float (&)[count]) { emu_wgmma_wait(pending); }

// Operations on pairs of 16-bit elements, moved as one 32-bit word. `r` becomes the pair at `a` of another lane (shuffle),
// the pair at `a` or at `b` (choose), or the pair at `a` (copy).

//// shuffle_pair.$t needs $t for t = bf16 | t = f16
static __device__ void shuffle_pair($t* r, const $t* a, int lane) { const unsigned x = *(const unsigned*)a; *(unsigned*)r = __shfl_sync(0xffffffffu, x, lane); }

//// shuffle_xor_pair.$t needs $t for t = bf16 | t = f16
static __device__ void shuffle_xor_pair($t* r, const $t* a, int mask) { const unsigned x = *(const unsigned*)a; *(unsigned*)r = __shfl_xor_sync(0xffffffffu, x, mask); }

//// choose_pair.$t needs $t for t = bf16 | t = f16
static __device__ void choose_pair($t* r, const $t* a, const $t* b, bool first) { const unsigned x = *(const unsigned*)a; const unsigned y = *(const unsigned*)b; *(unsigned*)r = first ? x : y; }

//// copy_pair.$t needs $t for t = bf16 | t = f16
static __device__ void copy_pair($t* r, const $t* a) { const unsigned x = *(const unsigned*)a; *(unsigned*)r = x; }

// Loads and stores of matrices of 8 rows of 16 bytes in shared memory by a warp. A lane holds 4 bytes of each matrix.

//// ldmatrix_x$count$trans.$t needs $struct for matrices
static __device__ void ldmatrix_x$count$trans($t* r, const $t* p) {
  unsigned* u = (unsigned*)r;
  asm volatile("ldmatrix.sync.aligned.$mode {$to}, [%$count];"
               : $outputs : "r"((unsigned)__cvta_generic_to_shared(p)) : "memory");
}
//// host
{
  emu_wide(r, 4);
  const int lane = threadIdx.x % 32;
  if (lane < $lanes) emu_wide(p, 16);
  for (int m = 0; m < $count; ++m)
    for (int e = 0; e < $each; ++e) {
      const long long from = __shfl_sync(~0u, (long long)p, m * 8 + ($row) % 8);
      r[m * $each + e] = ((const $t*)from)[$column];
    }
}

//// stmatrix_x$count$trans.$t needs $struct for matrices
static __device__ __forceinline__ void stmatrix_x$count$trans($t* p, const $t* r) {
  const unsigned* u = (const unsigned*)r;
  asm volatile("stmatrix.sync.aligned.$mode [%0], {$of};"
               :: "r"((unsigned)__cvta_generic_to_shared(p)), $inputs : "memory");
}
//// host
{
  emu_wide(r, 4);
  const int lane = threadIdx.x % 32;
  if (lane < $lanes) emu_wide(p, 16);
  for (int m = 0; m < $count; ++m)
    for (int e = 0; e < $each; ++e) {
      const long long to = __shfl_sync(~0u, (long long)p, m * 8 + ($row) % 8);
      (($t*)to)[$column] = r[m * $each + e];
    }
}

// One mma.sync. c and d point to rows t / 4 and t / 4 + 8 of the accumulator in lane t. The host text gathers a row of A
// from the four lanes that hold it, one word of each at a time, and likewise a column of B. It adds the products of these
// four words at once, as a tensor core of Ampere does. The last 13 bits of an f32 operand are ignored (tf32).

//// mma_$shape.$t needs $struct for mma
static __device__ void mma_$shape($rows, const $t* a, const $t* b) {
  const $word *u = (const $word*)a, *v = (const $word*)b;
  asm volatile("$instruction {$sums}, {$left}, {$right}, {$sums};"
               : $outputs
               : $inputs);
}
//// host
{
  const auto widen = [](unsigned long long x) { $widen };
  const int lane = threadIdx.x % 32, first = lane & ~3, bytes = sizeof($word);
  emu_wide(a, bytes), emu_wide(b, bytes);
  $sum* rows[] = {$heads};
  for (int i = 0; i < $deep; ++i)
    for (int e = 0; e < 2; ++e) {
      $sum left[$halves][4 * $each], right[4 * $each];
      for (int q = 0; q < 4; ++q) {
        unsigned long long v = 0; __builtin_memcpy(&v, b + $each * i, bytes);
        v = __shfl_sync(~0u, v, (2 * (lane % 4) + e) * 4 + q);
        for (int n = 0; n < $each; ++n) right[$each * q + n] = widen(v >> (8 * bytes / $each * n));
        for (int h = 0; h < $halves; ++h) {
          unsigned long long u = 0; __builtin_memcpy(&u, a + $each * ($halves * i + h), bytes);
          u = __shfl_sync(~0u, u, first + q);
          for (int n = 0; n < $each; ++n) left[h][$each * q + n] = widen(u >> (8 * bytes / $each * n));
        }
      }
      for (int h = 0; h < $halves; ++h) rows[h][e] = emu_add_products(rows[h][e], left[h], right, 4 * $each);
    }
}

// Copies of TMA boxes; coordinates in the order of the IR. The host texts call the emulator, which moves the bytes, and
// tracks outstanding copies and which threads may see their data.

//// tma_load$rank needs TensorMap for tma
static __device__ __forceinline__ void tma_load$rank(void* target, const TensorMap* map, unsigned long long* barrier, $ints) {
  asm volatile("cp.async.bulk.tensor.${rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {$from3}], [%2];" :: "r"((unsigned)__cvta_generic_to_shared(target)), "l"(map), "r"((unsigned)__cvta_generic_to_shared(barrier)), $reversed : "memory");
}
//// host
{ const int at[] = {$at}; emu_tma_load(target, map, barrier, at, $rank); }

// Copies a box to all blocks of the cluster whose bit is set in `blocks`.

//// tma_multicast$rank needs TensorMap for tma
static __device__ __forceinline__ void tma_multicast$rank(void* target, const TensorMap* map, unsigned long long* barrier, int blocks, $ints) {
  asm volatile("cp.async.bulk.tensor.${rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {$from4}], [%2], %3;" :: "r"((unsigned)__cvta_generic_to_shared(target)), "l"(map), "r"((unsigned)__cvta_generic_to_shared(barrier)), "h"((unsigned short)blocks), $reversed : "memory");
}
//// host
{ const int at[] = {$at}; emu_tma_multicast(target, map, barrier, at, $rank, blocks); }

//// tma_store$rank needs TensorMap for tma
static __device__ __forceinline__ void tma_store$rank(const TensorMap* map, const void* source, $ints) {
  asm volatile("cp.async.bulk.tensor.${rank}d.global.shared::cta.tile.bulk_group [%0, {$from2}], [%1];" :: "l"(map), "r"((unsigned)__cvta_generic_to_shared(source)), $reversed : "memory");
}
//// host
{ const int at[] = {$at}; emu_tma_store(map, source, at, $rank); }
