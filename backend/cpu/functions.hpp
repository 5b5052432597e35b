// Functions on vectors: math functions, panel matmuls (`panel_fma`), AMX tiles and scans. They are sections that
// a program includes when it needs them (`//// KEY needs KEYS`, as in functions.cuh). Math functions are minimax
// polynomials (Remez) without branches.

//// print_line
extern "C" int printf(const char*, ...);
extern "C" int fflush(void*);
template <class... Values> static void print_line(const char* format, Values... values) {
  printf(format, values...);
  fflush(nullptr);
}

//// vector.fused
// fused(a, b, c) = a * b + c with one rounding. It uses the intrinsics of g++ where they exist. g++ also vectorizes
// loops over arrays, but its compile time grows with the square of the number of arrays.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
INLINE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
INLINE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
#define FUSED(V, T) \
  INLINE V fused(V a, V b, V c) { \
    constexpr int n = sizeof(V) / sizeof(T); \
    T x[n], y[n], r[n]; \
    store_as(x, a), store_as(y, b), store_as(r, c); \
    for (int l = 0; l < n; ++l) r[l] = fused(x[l], y[l], r[l]); \
    return load_as<V>(r); \
  }
#ifdef AVX512
INLINE vec<float> fused(vec<float> a, vec<float> b, vec<float> c) { return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4); }
INLINE in_one<double> fused(in_one<double> a, in_one<double> b, in_one<double> c) { return __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4); }
#elif defined(AVX)
INLINE vec<float> fused(vec<float> a, vec<float> b, vec<float> c) { return __builtin_ia32_vfmaddps256(a, b, c); }
INLINE in_one<double> fused(in_one<double> a, in_one<double> b, in_one<double> c) { return __builtin_ia32_vfmaddpd256(a, b, c); }
#else
FUSED(vec<float>, float) FUSED(in_one<double>, double)
#endif
FUSED(vec<double>, double)
#endif
template <class T> INLINE T fused(T a, T b, T c) { return a * b + c; }
// Dot product per lane: adds the products of the two bf16 elements in a word of a and b to c. The elements of a word
// are consecutive along the contraction index k. The instruction has its own order of additions and its own rounding.
INLINE vec<float> fused(vec<unsigned> a, vec<unsigned> b, vec<float> c) {
#if defined(AVX512) && defined(__AVX512BF16__)
  asm("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
#else
  return fused((vec<float>)(a & 0xffff0000u), (vec<float>)(b & 0xffff0000u), fused((vec<float>)(a << 16), (vec<float>)(b << 16), c));
#endif
}
// Dot product per lane of the four int8 elements in each word. The instruction takes its first operand as unsigned, so
// 128 is added to each element of a, and 128 * b is subtracted from the accumulator.
INLINE vec<int> fused(vec<unsigned> a, vec<unsigned> b, vec<int> c) {
#if defined(AVX512) && defined(__AVX512VNNI__)
  const auto more = (mask)all(0x80808080u);
  return __builtin_ia32_vpdpbusd_v16si(c - __builtin_ia32_vpdpbusd_v16si(mask{}, more, (mask)b), (mask)a ^ more, (mask)b);
#else
  for (int n = 0; n < 32; n += 8) c += ((mask)(a << n) >> 24) * ((mask)(b << n) >> 24);
  return c;
#endif
}
INLINE vec<float> fused(vec<float> a, float b, vec<float> c) { return fused(a, all(b), c); }
// Evaluates a polynomial in x by Horner's rule. Coefficients begin with the highest degree.
template <class... C> INLINE vec<float> polynomial(vec<float> x, float first, C... others) {
  auto p = all(first);
  ((p = fused(p, x, all((float)others))), ...);
  return p;
}

//// vector.converted.bf16 needs bf16; to_f32.bf16; to_bf16
INLINE vec<float> to_f32(bf16_vec x) { return (vec<float>)(convert<unsigned>(x.bits) << 16); }
INLINE bf16_vec to_bf16(vec<float> x) {
  const auto u = (vec<unsigned>)x;
  return {convert<unsigned short>(choose(x != x, all(0x7fffu), (u + 0x7fffu + ((u >> 16) & 1)) >> 16))};
}

//// vector.converted.f16 needs f16; to_f32.f16; to_f16
#if defined(AVX512) || defined(AVX) && defined(__F16C__)
#ifdef AVX512
INLINE vec<float> wide(vec<short> x) { return __builtin_ia32_vcvtph2ps512_mask(x, vec<float>{}, -1, 4); }
INLINE vec<short> narrow(vec<float> x) { return __builtin_ia32_vcvtps2ph512_mask(x, 0, vec<short>{}, -1); }
#else
INLINE vec<float> wide(vec<short> x) { return __builtin_ia32_vcvtph2ps256(x); }
INLINE vec<short> narrow(vec<float> x) { return __builtin_ia32_vcvtps2ph256(x, 0); }
#endif
INLINE vec<float> to_f32(f16_vec x) { return wide((vec<short>)x.bits); }
INLINE f16_vec to_f16(vec<float> x) { return {choose(x != x, all((unsigned short)0x7fff), (vec<unsigned short>)narrow(x))}; }
#else
INLINE vec<float> to_f32(f16_vec x) { return each<float>([&](int l) { return to_f32(lane(x, l)); }); }
INLINE f16_vec to_f16(vec<float> x) { return each<f16>([&](int l) { return to_f16(x[l]); }); }
#endif

//// vector.builtin
#ifdef AVX512
INLINE vec<float> sqrtf(vec<float> x) { return __builtin_ia32_sqrtps512_mask(x, x, -1, 4); }
#define ROUNDED(F, mode) INLINE vec<float> F(vec<float> x) { return __builtin_ia32_rndscaleps_mask(x, mode, x, -1, 4); }
#elif defined(AVX)
INLINE vec<float> sqrtf(vec<float> x) { return __builtin_ia32_sqrtps256(x); }
#define ROUNDED(F, mode) INLINE vec<float> F(vec<float> x) { return __builtin_ia32_roundps256(x, mode); }
#else
INLINE vec<float> sqrtf(vec<float> x) PER_ELEMENT(__builtin_sqrtf)
#define ROUNDED(F, mode) INLINE vec<float> F(vec<float> x) PER_ELEMENT(__builtin_##F)
#endif
ROUNDED(rintf, 8) ROUNDED(floorf, 9) ROUNDED(ceilf, 10) ROUNDED(truncf, 11)
INLINE vec<float> fabsf(vec<float> x) { return (vec<float>)((mask)x & 0x7fffffff); }
INLINE vec<float> rsqrtf(vec<float> x) { return 1.0f / sqrtf(x); }

//// vector.exponential needs vector.fused; vector.builtin
// Clamps x to [least, most]; NaN stays NaN.
INLINE vec<float> clamped(vec<float> x, float least, float most) { return smaller(all(most), larger(all(least), x)); }
// Returns m * 2^n for integral n from -252 to 254, including denormal results. For n < -149 the result is 0, and m is
// set to 0 before the multiplication, because a result that underflows takes 150 cycles on some processors.
INLINE vec<float> scaled(vec<float> m, vec<float> n) {
  m = choose(n < -149.0f, all(0.0f), m);
#ifdef AVX512
  return __builtin_ia32_scalefps512_mask(m, n, m, -1, 4);
#else
  const auto all_of = convert<int>(n), half = all_of >> 1;
  return m * (vec<float>)((half + 127) << 23) * (vec<float>)((all_of - half + 127) << 23);
#endif
}

//// vector.exp2f needs vector.exponential
INLINE vec<float> exp2f(vec<float> x) {
  const auto y = clamped(x, -151.0f, 129.0f), n = rintf(y);
  return scaled(polynomial(y - n, 0.000154763f, 0.001340027f, 0.009618004f, 0.05550328f, 0.2402265f, 0.6931472f, 1.0f), n);
}

//// vector.expf needs vector.exponential
// Range reduction: returns x - n * log(2), where n is the integer nearest to x / log(2).
INLINE vec<float> below_log2(vec<float> x, vec<float>& n) {
  n = rintf(x * 1.442695041f);
  return fused(n, 0.00021219444f, fused(n, -0.693359375f, x));
}
INLINE vec<float> expf(vec<float> x) {
  vec<float> n, r = below_log2(clamped(x, -104.0f, 89.0f), n);
  return scaled(polynomial(r, 0.0013950492f, 0.00836889f, 0.041666206f, 0.16666518f, 0.5f, 1.0f, 1.0f), n);
}
INLINE vec<float> expm1f(vec<float> x) {
  vec<float> n, r = below_log2(clamped(x, -20.0f, 89.0f), n);
  const auto p = polynomial(r, 0.0013950492f, 0.00836889f, 0.041666206f, 0.16666518f, 0.5f);
  return with_sign(scaled(fused(r * r, p, 1.0f - scaled(all(1.0f), -n) + r), n), x);
}

//// vector.logf needs vector.fused
// Returns log2(x), log(x) or log(1 + x), as `kind` says. It writes the argument as (1 + f) * 2^e with 1 + f in
// [sqrt(1/2), sqrt(2)).
enum Logarithm { to_base_2, natural, of_1_more };
template <Logarithm kind> INLINE vec<float> log_of(vec<float> x) {
  const vec<float> u = kind == of_1_more ? 1.0f + x : x;
  const vec<float> lost = kind == of_1_more ? choose(x < 1.0f, x - (u - 1.0f), 1.0f - (u - x)) / u : all(0.0f);
  const mask tiny = u < 1.17549435e-38f, bits = (mask)choose(tiny, u * 8388608.0f, u), n = (bits - 0x3f3504f3) >> 23;
  const vec<float> e = convert<float>(n) - choose(tiny, all(23.0f), all(0.0f)), f = (vec<float>)(bits - (n << 23)) - 1.0f;
  const vec<float> s = f * f, p = polynomial(f, -0.07859598f, 0.12881635f, -0.13128753f, 0.14181194f, -0.16624555f,
      0.20002286f, -0.2500081f, 0.33333316f);  // (log(1 + f) - f + f^2 / 2) / f^3
  const vec<float> rest = fused(s, -0.5f, s * f * p);
  const vec<float> r = kind == to_base_2 ? e + fused(f, 1.4423828125f, fused(f, 0.0003122284f, rest * 1.442695041f))
                                         : fused(e, 0.693359375f, fused(e, -0.00021219444f, rest + lost) + f);
  const mask same = kind == of_1_more ? (x == __builtin_inff()) | (x == 0.0f) : x == __builtin_inff();
  const vec<float> of_positive = choose(u == 0.0f, all(-__builtin_inff()), choose(same, x, r));
  return choose((u < 0.0f) | (x != x), all(__builtin_nanf("")), of_positive);
}
INLINE vec<float> logf(vec<float> x) { return log_of<natural>(x); }
INLINE vec<float> log2f(vec<float> x) { return log_of<to_base_2>(x); }
INLINE vec<float> log1pf(vec<float> x) { return log_of<of_1_more>(x); }

//// vector.tanhf needs vector.expf
INLINE vec<float> tanhf(vec<float> x) {
  const auto a = fabsf(x), t = x * x;
  const auto p = polynomial(t, -0.005660789f, 0.020602008f, -0.05372923f, 0.13331328f, -0.33333278f);
  const auto near = fused(p * t, a, a), far = 1.0f - 2.0f / (expf(2.0f * a) + 1.0f);
  return with_sign(a < 0.625f ? near : far, x);
}

//// vector.erff needs vector.expf
INLINE vec<float> erff(vec<float> x) {
  const auto a = clamped(fabsf(x), 0.0f, 4.0f), t = a * a;
  const auto p = polynomial(
      t, 8.409923e-05f, -0.00081526284f, 0.0052019604f, -0.0268598f, 0.11283703f, -0.37612635f, 0.12837917f);
  const auto q = polynomial(a, 5.297051e-06f, -4.9941067e-05f, -2.7432225e-05f, 0.002869113f, -0.022575604f, 0.10516948f,
      0.63567317f, 1.1285415f);
  const auto near = fused(p, a, a), far = 1.0f - expf(-q * a);
  return with_sign(a < 0.92f ? near : far, x);
}

//// vector.turn needs vector.fused; vector.builtin
// Returns sin(x + quarters * pi / 2) for |x| < 2^12. The range reduction subtracts a multiple of pi / 2 from x; the
// result is the sum r + low.
template <int quarters> INLINE vec<float> turned(vec<float> x) {
  const auto k = rintf(x * 0.636619772f);
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  const auto far = fused(k, -1.5707964f, x), r = fused(k, 4.371139e-08f, far);
  const auto rounded = choose(2.0f * fabsf(r) > fabsf(far), fused(k, 4.371139e-08f, far - r), all(0.0f));
  const auto low = fused(k, 1.7151245e-15f, rounded);
#else  // Without FMA: in float, rounding would cancel all digits of x. In double, k times 33 bits of pi / 2 is exact.
  const auto turns = convert<double>(k);
  const auto whole = (convert<double>(x) - turns * 1.5707963267341256) - turns * 6.077100506506192e-11;
  const auto r = convert<float>(whole), low = convert<float>(whole - convert<double>(r));
#endif
  const auto t = r * r;
  const auto s = r + fused(polynomial(t, -0.00019516978f, 0.008332176f, -0.16666655f) * t, r, low);
  const auto c = 1.0f + fused(polynomial(t, 2.4438092e-05f, -0.0013887364f, 0.041666646f, -0.5f), t, -low * r);
  const auto n = convert<int>(k) + quarters;
  const auto v = choose((n & 1) != 0, c, s);
  return choose((n & 2) != 0, -v, v);
}
// As `turned`, for all x: if an element is too large, `far` (sinf or cosf of the C library) computes each element.
template <int quarters> INLINE vec<float> all_turned(vec<float> x, float (*far)(float)) {
  bool large = false;
  PER_LANE large |= !(__builtin_fabsf(x[l]) < 4096.0f);
  if (large) return each<float>([&](int l) { return far(x[l]); });
  return turned<quarters>(x);
}
INLINE vec<float> sinf(vec<float> x) { return all_turned<0>(x, sinf); }
INLINE vec<float> cosf(vec<float> x) { return all_turned<1>(x, cosf); }

//// vector.library
// Rare functions: calls of glibc's vector functions (libmvec, at most 4 ulp) where available, else scalar calls.
#if defined(__x86_64__) && __GLIBC__ * 100 + __GLIBC_MINOR__ >= 235
#define SIMD __attribute__((simd("notinbranch"), const))
#else
#define SIMD
#endif
#define LIBRARY(F, T) extern "C" SIMD T library_##F(T) asm(#F); INLINE vec<T> F(vec<T> x) PER_ELEMENT(library_##F)
#define LIBRARY2(F, T, RESULT) extern "C" SIMD T library_##F(T, T) asm(#F); INLINE vec<T> F(vec<T> x, vec<T> y) { \
  T r[lanes], e[lanes]; store(r, x), store(e, y); _Pragma("omp simd") PER_LANE r[l] = library_##F(r[l], e[l]); return RESULT; }

//// vector.library.f32 needs vector.library
#define F32(F) LIBRARY(F, float)
F32(acosf) F32(acoshf) F32(asinf) F32(asinhf) F32(atanf) F32(atanhf) F32(cbrtf) F32(coshf) F32(log10f) F32(sinhf) F32(tanf)
LIBRARY2(atan2f, float, load(r))
LIBRARY2(powf, float, choose(y == 0.0f, all(1.0f), load(r)))  // x^0 is 1, also if x is NaN

//// vector.library.f64 needs vector.library
#define F64(F) LIBRARY(F, double)
F64(acos) F64(acosh) F64(asin) F64(asinh) F64(atan) F64(atanh) F64(cbrt) F64(cos) F64(cosh) F64(erf) F64(exp) F64(exp2)
F64(expm1) F64(log) F64(log10) F64(log1p) F64(log2) F64(sin) F64(sinh) F64(tan) F64(tanh)
LIBRARY2(atan2, double, load(r))
LIBRARY2(pow, double, choose(compare([](auto a, auto b) { return a == b; }, y, all(0.0)), all(1.0), load(r)))

//// vector.builtin.f64
#define BUILTIN(F) INLINE vec<double> F(vec<double> x) PER_ELEMENT(__builtin_##F)
BUILTIN(sqrt) BUILTIN(fabs) BUILTIN(floor) BUILTIN(ceil) BUILTIN(trunc) BUILTIN(rint)
INLINE vec<double> rsqrt(vec<double> x) { return 1.0 / sqrt(x); }

//// vector.panel_fma needs vector.fused
struct Range { long begin, end; };
struct Extents { Range rows, columns, depth; };
// Copies `high` rows of a matrix to a panel: a contiguous buffer of `columns` columns whose rows start `pitch` elements
// apart. In the matrix, `row` is the stride from one row to the next and `column` the stride from one column to the
// next. Columns outside `wide` are set to zero.
template <int columns, int pitch = columns, class T>
static void pack(T* to, const T* from, long row, long column, long high, Range wide) {
  const long begin = max<long>(wide.begin, 0), end = min<long>(wide.end, columns);
  if constexpr (columns % lanes == 0)
    if (column == 1) {
      for (long i = 0; i < high; ++i)
        for (long j = 0; j < columns; j += lanes)
          if (begin <= j) store(to + i * pitch + j, load_first(from + i * row + j, end - j, T(0)));
          else for (long l = j; l < j + lanes; ++l) to[i * pitch + l] = begin <= l && l < end ? from[i * row + l] : T(0);
      return;
    }
  // Prefetches the source of the next panel, if it is at most 8 KiB away: prefetches across more pages cost more than
  // they gain.
  const bool near = lanes < 16 && columns * column * sizeof(T) <= 8192;
  long done = 0;  // number of rows that are packed by transposing whole vectors of the matrix
  const long whole = row == 1 && begin == 0 ? end / lanes * lanes : 0;
  // Rows per step: a whole cache line, because distant lines are evicted soon.
  constexpr long line = sizeof(T) * lanes < 64 ? 64 / sizeof(T) : lanes;
  for (long rows; whole && done + lanes <= high; done += rows) {
    rows = line > lanes ? min(line, (high - done) / lanes * lanes) : lanes;
    for (long j = 0; j < whole; j += lanes) {
      if (near) PER_LANE __builtin_prefetch(from + (j + columns + l) * column + done);
      for (int l = 0; l < rows; l += lanes) transpose(to + (done + l) * pitch + j, pitch, from + j * column + done + l, column);
    }
    for (long j = whole; j < columns; ++j)
      for (int l = 0; l < rows; ++l) to[(done + l) * pitch + j] = j < end ? from[done + l + j * column] : T(0);
  }
  for (long i = done; i < high; ++i) {
    if (end - begin < columns) __builtin_memset(to + i * pitch, 0, columns * sizeof(T));
    for (long j = begin; j < end; ++j) to[i * pitch + j] = from[i * row + j * column];
  }
}
// Loads a vector of elements of type S from sizeof(S) / sizeof(E) rows of a matrix. Each S packs the elements of one
// column: with E = bf16, a 32-bit word holds two rows of it.
template <class S, class E> INLINE vec<S> load_rows(const E* from, long row) {
  constexpr int parts = sizeof(S) / sizeof(E), bits = 32 / parts;
  if constexpr (parts == 1) {
    return load(from);
  } else {
    typedef std::make_unsigned_t<typename Int<sizeof(E)>::type> Part;
    vec<S> words{};
#pragma GCC unroll 4
    for (int n = 0; n < parts; ++n) words |= convert<S>(load((const Part*)(from + n * row))) << bits * n;
    return words;
  }
}
// Packs `panels` adjacent panels at once from a matrix with contiguous rows, so that it reads long runs of each row.
template <int panels, int columns, int rows, class S, class E> static void pack_panels(S* to, const E* from, long row, long high) {
  for (long i = 0; i < high; ++i, from += sizeof(S) / sizeof(E) * row)
#pragma GCC unroll 8
    for (int j = 0; j < panels * columns; j += lanes) store(to + j / columns * columns * rows + i * columns + j % columns, load_rows<S>(from + j, row));
}
// Micro kernel of the matmul: c = a * b, plus c if `more`, for a block of c with `rows` rows that stays in registers. b
// is one panel, whose rows are `pitch` elements apart. If not `all_used`, only the first `used` rows of c are stored.
// If `step` is 0, rows of a are contiguous along k and `apart` elements apart. Otherwise a is transposed: consecutive k
// are `apart` elements apart and consecutive rows `step` elements; all rows are used then.
template <int rows, int vectors, int step, bool distant, bool all_used, class T, class S>
__attribute__((noinline)) static void block_fma(long used, T* c, long c_row, const S* a, long apart, const S* panel, long pitch, long depth, bool more) {
  // Elements per register; registers per row of the block.
  constexpr int each = in_one_bytes<T> / sizeof(T), wide = vectors * lanes / each;
  in_one<T> sum[rows][wide] = {};  // starts at zero and is added to c at the end: sums of similar size lose fewer bits
  if (distant && more)
#pragma GCC unroll 14
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < wide; ++j) __builtin_prefetch(c + i * c_row + j * each);
  asm("" : "+r"(apart));  // hides the stride from g++, which would load whole vectors to use one element of each
  const S* row_of[rows];
#pragma GCC unroll 14
  for (int i = 0; i < rows; ++i) row_of[i] = a + (step ? i * step : (all_used || i < used ? i : 0) * apart);
  for (long k = 0; k < depth; ++k) {
    in_one<S> row[wide];
    // Of the next rows: the hardware prefetcher tracks only a few pages.
    if (step) __builtin_prefetch(a + k * apart + 2 * rows * step);
#pragma GCC unroll 4
    for (int j = 0; j < wide; ++j) row[j] = in_register(load_as<in_one<S>>(panel + k * pitch + j * each));
#pragma GCC unroll 14
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < wide; ++j) sum[i][j] = fused((step ? a[k * apart + i * step] : row_of[i][k]) - in_one<S>{}, row[j], sum[i][j]);
  }
#pragma GCC unroll 14
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < wide; ++j)
      if (T* const p = c + i * c_row + j * each; all_used || i < used) {
        if (more) sum[i][j] += load_as<in_one<T>>(p);
        store_as(p, sum[i][j]);
      }
}
// Computes one block of at most `rows` of the `left` remaining rows, by the instantiation with the fitting number of
// rows. Returns the number of rows by which the caller advances.
template <int rows, int vectors, int step, bool distant, class... More> INLINE long rows_fma(long left, More... more) {
  constexpr int fewer = lanes < 16 || rows > 12 || rows == 8 || rows == 7 ? rows - 1 : rows > 8 ? 8 : rows == 6 ? 4 : rows / 2;
  if constexpr (step ? rows > 1 : lanes < 16 && rows > 4)  // 4 rows have enough independent sums to hide the latency
    if (left < rows) return rows_fma<fewer, vectors, step, distant>(left, more...);
  step || left >= rows ? block_fma<rows, vectors, step, distant, true>(left, more...) : block_fma<rows, vectors, step, distant, false>(left, more...);
  return lanes < 16 ? min<long>(left, rows) : rows;
}
template <int N, class T> constexpr int panel_vectors = N >= 2 * lanes && sizeof(T) <= 4 ? 2 : 1;
constexpr long terms = 256;  // products added up in one register before c is updated: more would round worse
// The matmul of all `high` rows of a with the `columns` of b, one panel of b at a time. `panel_of` returns the panel:
// a pointer into b if b can be read in place, else a copy that it packs into the L1 cache.
template <int M, int N, int K, int step, bool fresh, int several, class T, class S, class Panel>
INLINE void panels_fma(T* c, const S* a, long apart, long high, long depth, Range columns, Panel panel_of) {
  constexpr int vectors = panel_vectors<N, T>, width = vectors * lanes;
  // c does not fit into the L1 cache, so the next block of it is prefetched.
  constexpr bool distant = M * N * sizeof(T) > 1 << 17;
  // Rows that fit into 16 or 32 registers; at most 8 row pointers fit into scalar registers.
  constexpr int full = lanes < 16 ? __is_same(S, T) ? 6 : 5 : step ? 14 : 8;
  constexpr int blocks = (M + full - 1) / full, most = step && M > full ? full : (M + blocks - 1) / blocks;
  const long parts = (high + most - 1) / most, rows = step && high > 0 ? (high + parts - 1) / parts : most;
  alignas(64) S panel[several * K];
  for (long j = columns.begin / width * width; high > 0 && j < columns.end; j += width) {
    long pitch = width;
    const S* const from = panel_of(panel, j, high <= most, pitch);
    for (long k = 0; k < depth; k += terms)
      for (long i = 0, left = parts; i < high; --left) {
        // If b is read in place, the rows after a panel belong to the next one: prefetches them.
        if (from != panel && parts >= 4 && k == 0)
          for (long n = depth * i / high; n < depth * min(i + most, high) / high; ++n)
            for (int l = 0; l < width; l += 64 / sizeof(S)) __builtin_prefetch(from + (depth + n) * pitch + l, 0, 2);
        i += rows_fma<most, vectors, step, distant>(lanes < 16 ? (high - i + left - 1) / left : min(rows, high - i), c + i * N + j,
                                           long(N), a + (step ? i * step + k * apart : i * apart + k), apart,
                                           from + k * pitch, pitch, min(terms, depth - k), !fresh || k > 0);
      }
  }
}
// Declarations for matmuls of bf16 and int8, which are in a section of their own (vector.panel_fma.words): panels of
// packed 32-bit words, and AMX tiles where the processor has them.
template <int columns, class E> static void pack_words(unsigned* to, const E* from, long row, long column, long depth, Range wide);
template <int K, int width, int several, class T, class Panel>
static bool tiled_fma(T* c, long c_row, bool read, const unsigned* a, long a_row, long high, long words, Range columns, Panel panel_of);
// c += a * b, or c = a * b if `fresh`. c is M x N with contiguous rows; a (M x K) and b (K x N) have any strides.
// Outside the ranges `e` the operands count as zero and are not read. For bf16 and int8, `parts` consecutive elements
// along k are packed into one 32-bit word. `step` is the row stride of a transposed a, or 0 (see block_fma).
template <int M, int N, int K, int step = 0, bool fresh = false, class T, class E>
static void panel_fma(T* c, const E* a, long a_row, long a_column, const E* b, long b_row, long b_column,
                      const Extents e = {{0, M}, {0, N}, {0, K}}) {
  const long high = e.rows.end - e.rows.begin, depth = e.depth.end - e.depth.begin;
  if (high <= 0 || depth <= 0) return;  // before any pointer into a or b is computed, which may be out of bounds
  if constexpr (N < lanes) {  // computes a full vector of columns and copies the first N
    alignas(64) T wide[M * lanes];
    const Range some = {e.columns.begin, min<long>(e.columns.end, N)};
    panel_fma<M, lanes, K, step, true>(wide, a, a_row, a_column, b, b_row, b_column, {e.rows, some, e.depth});
    for (long i = e.rows.begin; i < e.rows.end; ++i)
      for (long j = some.begin; j < some.end; ++j) c[i * N + j] = fresh ? wide[i * lanes + j] : c[i * N + j] + wide[i * lanes + j];
    return;
  }
  constexpr int parts = sizeof(T) / sizeof(E), width = panel_vectors<N, T> * lanes, most = (K + parts - 1) / parts;
  typedef std::conditional_t<(parts > 1), unsigned, E> S;
  constexpr int several = (N >= 4 * width ? 4 : N >= 2 * width ? 2 : 1) * width, pitch = most + lanes;
  c += e.rows.begin * N;
  a += e.rows.begin * a_row + e.depth.begin * a_column;
  b += e.depth.begin * b_row;
  const auto panel_of = [=](S* panel, long j, bool once, long& pitch) -> const S* {
    const E* const from = b + j * b_column;
    const Range wide = {e.columns.begin - j, min<long>(e.columns.end - j, width)};
    if (parts == 1 && b_column == 1 && (once || b_row == width) && wide.begin <= 0 && wide.end == width) {
      pitch = b_row;
      return (const S*)from;
    }
    const long first = j / several * several;
    if (several > width && b_column == 1 && depth % parts == 0 && e.columns.begin <= first && first + several <= e.columns.end) {
      if (j == first) pack_panels<several / width, width, most>(panel, from, b_row, depth / parts);
      return panel + (j - first) * most;
    }
    if constexpr (parts > 1) pack_words<width>(panel, from, b_row, b_column, depth, wide);
    else pack<width>(panel, from, b_row, b_column, depth, wide);
    return panel;
  };
  if constexpr (step) {
    panels_fma<M, N, K, step, fresh, several>(c, a, a_column, high, depth, e.columns, panel_of);
  } else {
    typedef typename Int<sizeof(E)>::type Part;
    alignas(64) S left[M * pitch];
    const S* rows = (const S*)a;
    // Copies rows of a that are on separate pages if many panels are multiplied with them. If the stride is a multiple
    // of the page size (cache conflicts), a few panels are enough.
    const bool far = !finds_pages && (N >= 16 * width || N >= 4 * width && a_row * sizeof(E) % 4096 == 0);
    if (a_column != 1 || (parts == 1 ? far : (long)a % 4 || a_row % parts || depth % parts)) {
      pack<parts * most, parts * pitch>((Part*)left, (const Part*)a, a_row, a_column, high, {0, depth});
      rows = left, a_row = parts * pitch;
    }
    const long words = (depth + parts - 1) / parts, apart = a_row / parts;
    if constexpr (parts > 1) if (tiled_fma<most, width, several>(c, N, !fresh, rows, apart, high, words, e.columns, panel_of)) return;
    panels_fma<M, N, most, 0, fresh, several>(c, rows, apart, high, words, e.columns, panel_of);
  }
}

//// vector.tiles
#ifdef __AMX_BF16__
// AMX: eight tile registers of up to 16 rows of 64 bytes. The process must ask Linux for permission to use them
// (arch_prctl, ARCH_REQ_XCOMP_PERM).
extern "C" long syscall(long, ...);
static const bool has_tiles = syscall(158, 0x1023, 18) == 0;
struct Tiles { unsigned char palette = 1, start = 0, none[14] = {}; unsigned short bytes[16] = {}; unsigned char rows[16] = {}; };
INLINE void tile_config(const Tiles& t) { asm volatile("ldtilecfg %0" ::"m"(t)); }
template <int t> INLINE void tile_zero() { asm volatile("tilezero %%tmm%c0" ::"i"(t)); }
INLINE void tile_release() { asm volatile("tilerelease"); }
template <int t> INLINE void tile_load(const void* p, long row) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(row), "i"(t) : "memory");
}
template <int t> INLINE void tile_store(void* p, long row) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(row), "i"(t) : "memory");
}
template <int c, int a, int b> INLINE void tile_dot(float*) { asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b)); }
template <int c, int a, int b> INLINE void tile_dot(int*) { asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b)); }
#endif

//// vector.panel_fma.words needs vector.panel_fma; vector.tiles
// Packs a panel of 32-bit words, each with `parts` elements of one column that are consecutive along k. The last word
// of a column is filled up with zeros.
template <int columns, class E> static void pack_words(unsigned* to, const E* from, long row, long column, long depth, Range wide) {
  typedef typename Int<sizeof(E)>::type Part;
  constexpr int parts = 4 / sizeof(E), bits = 32 / parts;
  if (row == 1 && (long)from % 4 == 0 && column % parts == 0 && depth % parts == 0)
    return pack<columns>(to, (const unsigned*)from, 1, column / parts, depth / parts, wide);
  for (long k = 0; k < depth; k += parts, from += parts * row, to += columns)
    for (long j = 0; j < columns; j += lanes) {
      vec<unsigned> words{};
      if (column == 1 && wide.begin <= j && j + lanes <= wide.end && k + parts <= depth) {
        words = load_rows<unsigned>(from + j, row);
      } else for (int n = 0; n < min<long>(parts, depth - k); ++n) {
        const auto p = (const Part*)from + n * row;
        if (column == 1 && wide.begin <= j) words |= convert<unsigned>((vec<std::make_unsigned_t<Part>>)load_first(p + j, wide.end - j, Part(0))) << bits * n;
        else for (long l = max<long>(0, wide.begin - j); l < lanes && j + l < wide.end; ++l) words[l] |= (unsigned)(std::make_unsigned_t<Part>)p[(j + l) * column] << bits * n;
      }
      store(to + j, words);
    }
}
#ifdef __AMX_BF16__
// Configures the tile registers: 0 to 3 are accumulators, 4 and 5 hold rows of a, 6 and 7 columns of b. One instruction
// multiplies `step` words along k.
static void tile_shape(Tiles& t, long first, long second, long step) {
  if (t.rows[4] == first && t.rows[5] == second && t.rows[6] == step) return;
  for (int i = 0; i < 8; ++i) {
    t.rows[i] = i > 5 ? step : (i < 4 ? i > 1 : i > 4) ? second : first;
    t.bytes[i] = !t.rows[i] ? 0 : i == 4 || i == 5 ? 4 * step : 64;
  }
  tile_config(t);
}
// c = a * b, plus c if `read`, for up to 32 rows of c and one panel of b. a and b are packed in words.
template <int width, class T>
static void tiles_fma(Tiles& t, bool read, long rows, T* c, long c_row, const unsigned* a, long a_row, const unsigned* panel,
                      long words, long step = 16) {
  const long whole = words / step * step, left = words - whole, first = min(rows, 16l), second = rows - first;
  if (left) tiles_fma<width>(t, read, rows, c, c_row, a + whole, a_row, panel + whole * width, left, left), read = true;
  if (!whole) return;
  const auto each = [=](auto use) {  // calls `use` with the index of each accumulator register in use
    use(std::integral_constant<int, 0>()), width > 16 ? use(std::integral_constant<int, 1>()) : void();
    if (second) use(std::integral_constant<int, 2>()), width > 16 ? use(std::integral_constant<int, 3>()) : void();
  };
  const auto sums_at = [=](int n) { return c + n / 2 * 16 * c_row + n % 2 * 16; };
  tile_shape(t, first, second, step);
  each([=](auto n) { read ? tile_load<n>(sums_at(n), 4 * c_row) : tile_zero<n>(); });
  for (long k = 0; k < whole; k += step) {
    tile_load<4>(a + k, 4 * a_row), tile_load<6>(panel + k * width, 4 * width);
    if (width > 16) tile_load<7>(panel + k * width + 16, 4 * width);
    if (second) tile_load<5>(a + 16 * a_row + k, 4 * a_row);
    each([=](auto n) { tile_dot<n, 4 + n / 2, 6 + n % 2>(c); });
  }
  each([=](auto n) { tile_store<n>(sums_at(n), 4 * c_row); });
}
// The matmul of all `high` rows of a with the `columns` of b by AMX, one panel at a time. Returns false if there is no
// AMX.
template <int K, int width, int several, class T, class Panel>
static bool tiled_fma(T* c, long c_row, bool read, const unsigned* a, long a_row, long high, long words, Range columns, Panel panel_of) {
  if (!has_tiles) return false;
  alignas(64) unsigned panel[several * K];
  long pitch = width;
  Tiles t;
  for (long j = columns.begin / width * width; j < columns.end; j += width) {
    const unsigned* const from = panel_of(panel, j, false, pitch);
    for (long i = 0; i < high; i += 32)
      tiles_fma<width>(t, read, min(high - i, 32l), c + i * c_row + j, c_row, a + i * a_row, a_row, from, words);
  }
  tile_release();
  return true;
}
#else
template <int K, int width, int several, class... More> static bool tiled_fma(More...) { return false; }
#endif

//// vector.log_add_exp needs vector.expf; vector.logf; vector.builtin
INLINE vec<float> log_add_exp(vec<float> a, vec<float> b) {
  return choose(a == b, a + 0.6931472f, (a < b ? b : a) + log1pf(expf(-fabsf(a - b))));
}

//// vector.scan
// State of an inclusive scan (prefix sums) of `inner` interleaved columns: element i continues column i % inner. With
// inner = 1 it is a scan along the lanes. The sum of the row so far (`sums`) is kept apart from the value that the row
// starts with (`before`), so a long chain of tiles rounds less often. If `short_row` is not 0, a vector consists of
// several rows of that length.
template <class T, int inner, int short_row = 0> struct Scan {
  typedef in_one<T> part;
  typedef typename Int<sizeof(T)>::type word;
  static constexpr int n = sizeof(part) / sizeof(T);
  static constexpr int parts = inner > n ? inner / n : 1;
  part before[parts], sums[parts];
  template <class F> __attribute__((always_inline)) inline void start_row(F of_lane, T neutral) {
    for (auto& s : sums) s = neutral - part{};
    for (int l = 0; l < parts * n; ++l) before[l / n][l % n] = of_lane(l % inner);
  }
  template <class F> __attribute__((always_inline)) inline T last_lane(int l, F joined) {
    return joined(before[l / n], sums[l / n])[l % n];
  }
  template <class F, int... l> static inline __attribute__((always_inline)) part moved_lanes(part a, part b, F of_lane, std::integer_sequence<int, l...>) {
    typedef word words __attribute__((vector_size(sizeof(part))));
#ifdef __clang__
    return part{(of_lane(l) < n ? a[of_lane(l) % n] : b[of_lane(l) % n])...};
#else
    return __builtin_shuffle(a, b, words{(word)of_lane(l)...});
#endif
  }
  template <class F> static inline __attribute__((always_inline)) part moved_lanes(part a, part b, F of_lane) {
    return moved_lanes(a, b, of_lane, std::make_integer_sequence<int, n>());
  }
  // Returns the scan of `v`, whose first element has index `i` in its row.
  template <class F> __attribute__((always_inline)) inline vec<T> next_vector(vec<T> v, int i, T neutral, F joined) {
    T x[lanes];
    store_as(x, v);
#pragma GCC unroll 4
    for (int k = 0; k < lanes; k += n) {
      auto p = load_as<part>(&x[k]);
      const part none = neutral - part{};
      if (short_row && (i + k) % (short_row ? short_row : 1) == 0)
        for (auto& s : sums) s = none;
      if constexpr (inner >= n) {
        const int at = (i + k) % inner / n;
        sums[at] = joined(sums[at], p);
        p = joined(before[at], sums[at]);
      } else {
        constexpr int row = short_row && short_row < n ? short_row : n;
#pragma GCC unroll 4
        for (int apart = inner; apart < row; apart *= 2)
          p = joined(moved_lanes(none, p, [=](int l) { return l % row < apart ? l : n + l - apart; }), p);
        if constexpr (row == n) p = joined(sums[0], p);
        if constexpr (row == n) sums[0] = moved_lanes(p, p, [](int l) { return n - inner + l % inner; });
        p = joined(before[0], p);
      }
      store_as(&x[k], p);
    }
    return load_as<vec<T>>(x);
  }
};
