// Vector types of `lanes` elements: the same source for AVX-512, AVX, NEON and SSE. A mask (vector of bool) is a vector
// of int with -1 for true. Functions on vectors have the names of the scalar functions, so a kernel's text is the same
// for both.
#include <utility>

#define __device__ __attribute__((always_inline)) inline
#define INLINE static inline __attribute__((always_inline))
#define PER_LANE for (int l = 0; l < lanes; ++l)
// Instructions without a C++ operator are g++ intrinsics. clang uses the generic code, which it vectorizes itself.
#if defined(__AVX512F__) && !defined(__clang__)
#define AVX512
#elif defined(__AVX__) && !defined(__AVX512F__) && !defined(__clang__)
#define AVX
#endif
constexpr int lanes = __BIGGEST_ALIGNMENT__ / 4;  // ints or floats per register: 16, 8 or 4
// `finds_pages`: true on AMD processors, which need no copy of operand rows that are on separate pages. `locality`: the
// hint of software prefetches; 2 (not into L1) on AMD before Zen 5, whose prefetches wait for loads that are in flight.
#if defined(__CLZERO__) && !defined(__AVXVNNI__)
constexpr bool finds_pages = true; constexpr int locality = 2;
#elif defined(__CLZERO__)
constexpr bool finds_pages = true; constexpr int locality = 3;
#else
constexpr bool finds_pages = false; constexpr int locality = 3;
#endif

template <class T> struct Vector { typedef T type __attribute__((vector_size(lanes * sizeof(T)))); };
template <class T> using vec = typename Vector<T>::type;
typedef vec<int> mask;
template <> struct Vector<bool> { typedef mask type; };
template <int bytes> struct Int;
#define INT(T) template <> struct Int<sizeof(T)> { typedef T type; };
INT(signed char) INT(short) INT(int) INT(long long)

// Converts a vector of 8- or 16-bit integers to int. Conversions between narrow integers and floats go through int,
// because compilers do them element by element otherwise.
template <class V> INLINE mask widen(V x) { return __builtin_convertvector(x, mask); }
// The intrinsics are one instruction; g++ needs five for the generic conversion.
#ifdef AVX512
#define WIDEN(T, WORD, NAME) INLINE mask widen(vec<T> x) { return (mask)__builtin_ia32_##NAME##512_mask((vec<WORD>)x, mask{}, -1); }
WIDEN(signed char, char, pmovsxbd) WIDEN(unsigned char, char, pmovzxbd) WIDEN(short, short, pmovsxwd) WIDEN(unsigned short, short, pmovzxwd)
#elif defined(AVX) && defined(__AVX2__)
INLINE mask widen(vec<short> x) { return __builtin_ia32_pmovsxwd256(x); }
INLINE mask widen(vec<unsigned short> x) { return __builtin_ia32_pmovzxwd256((vec<short>)x); }
#endif
template <class To, class V> INLINE vec<To> convert(V x) {
  constexpr bool from_real = (__typeof__(x[0] + 0))0.5f != 0;
  if constexpr (sizeof(x[0]) < 4 && sizeof(To) >= 4)
    return __builtin_convertvector(widen(x), vec<To>);
  else if constexpr (from_real && sizeof(To) < 4)
    return __builtin_convertvector(__builtin_convertvector(x, mask), vec<To>);
  else
    return __builtin_convertvector(x, vec<To>);
}

// A vector of 8-byte elements takes two registers. g++ compares and selects such a vector element by element, so the
// functions below work on its two halves. They split and join by memcpy, because g++ also does such shuffles by
// element.
template <class T> struct Half { typedef T type __attribute__((vector_size(lanes / 2 * sizeof(T)))); };
template <class T> using half = typename Half<T>::type;
#if !defined(__clang__) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HALVES
template <class V> using element = std::remove_cv_t<std::remove_reference_t<decltype(V{}[0])>>;
template <class V> INLINE auto low(V v) { half<element<V>> h; __builtin_memcpy(&h, &v, sizeof h); return h; }
template <class V> INLINE auto high(V v) { half<element<V>> h; __builtin_memcpy(&h, (char*)&v + sizeof h, sizeof h); return h; }
template <class V, int... l> INLINE auto joined(V a, V b, std::integer_sequence<int, l...>) { return __builtin_shufflevector(a, b, l...); }
template <class V> INLINE auto join(V a, V b) {
  if constexpr (sizeof(element<V>) <= 4) return joined(a, b, std::make_integer_sequence<int, lanes>());
  const V halves[2] = {a, b};
  vec<element<V>> v;
  __builtin_memcpy(&v, halves, sizeof v);
  return v;
}
#endif
#endif
template <class V> constexpr bool two_registers = sizeof(V) > 4 * lanes;  // false for the one-register vectors of scans
// in_halves applies a binary function to the halves of two-register vectors, or to whole vectors otherwise. compare
// does so for a comparison and returns a mask: its result has elements as wide as its operands.
template <class F, class V> INLINE V in_halves(F f, V a, V b) {
#ifdef HALVES
  if constexpr (two_registers<V>) return join(f(low(a), low(b)), f(high(a), high(b)));
#endif
  return f(a, b);
}
template <class V> INLINE mask as_mask(V m) { return __builtin_convertvector(m, mask); }
template <class F, class V> INLINE mask compare(F f, V a, V b) {
#ifdef HALVES
  if constexpr (sizeof(a[0]) > 4)
    return join(__builtin_convertvector(f(low(a), low(b)), half<int>), __builtin_convertvector(f(high(a), high(b)), half<int>));
#endif
  return as_mask(f(a, b));
}
template <class V> INLINE V choose(mask m, V a, V b) {
#ifdef HALVES
  if constexpr (sizeof(a[0]) > 4) {
    const auto l = __builtin_convertvector(low(m), half<long long>), h = __builtin_convertvector(high(m), half<long long>);
    return join(l ? low(a) : low(b), h ? high(a) : high(b));
  }
#endif
  return __builtin_convertvector(m, vec<typename Int<sizeof(a[0])>::type>) ? a : b;
}
template <class T> INLINE vec<T> all(T x) { return x - vec<T>{}; }
INLINE mask all(bool x) { return all(x ? -1 : 0); }
// A vector constant whose lane l is f(l).
template <class T, class F, int... l> INLINE vec<T> constants(F f, std::integer_sequence<int, l...>) { return vec<T>{(T)f(l)...}; }
template <class T, class F> INLINE vec<T> constants(F f) { return constants<T>(f, std::make_integer_sequence<int, lanes>()); }
template <class T> INLINE vec<T> numbers() { return constants<T>([](int l) { return l; }); }

// Unaligned loads and stores of a vector of type V. They do not use memcpy, because g++ 12 then merges constants that
// differ only in their upper lanes.
template <class V, class T> struct Anywhere { typedef T type __attribute__((vector_size(sizeof(V)), aligned(alignof(T)), may_alias)); };
template <class V, class T> INLINE V load_as(const T* p) { return *(const typename Anywhere<V, T>::type*)p; }
template <class V, class T> INLINE void store_as(T* p, V v) { *(typename Anywhere<V, T>::type*)p = v; }
template <class T> INLINE vec<T> load(const T* p) { return load_as<vec<T>>(p); }
// Vector that fits into one register: fewer elements if they are wider than 4 bytes. g++ keeps two-register vectors in
// memory.
template <class T> constexpr int in_one_bytes = lanes * (sizeof(T) < 4 ? sizeof(T) : 4);
template <class T> struct InOne { typedef T type __attribute__((vector_size(in_one_bytes<T>))); };
template <class T> using in_one = typename InOne<T>::type;
template <class T> INLINE void store(T* p, vec<T> v) { store_as(p, v); }
// Keeps a loaded vector in a register for several uses: g++ would load it again for each.
template <class V> INLINE V in_register(V v) {
#ifdef AVX
  if constexpr (sizeof v == 32) asm("" : "+x"(v));
#endif
  return v;
}
INLINE mask load(const bool* p) { return as_mask(load((const signed char*)p) != 0); }
INLINE void store(bool* p, mask m) { store((signed char*)p, convert<signed char>(m & 1)); }

// Element-wise fallbacks for operations without a vector instruction.
template <class T> INLINE void set(vec<T>& v, int l, T x) { v[l] = x; }
INLINE void set(mask& v, int l, bool x) { v[l] = x ? -1 : 0; }
template <class T, class F> INLINE vec<T> each(F f) {
  vec<T> v{};
  PER_LANE set(v, l, (T)f(l));
  return v;
}

// Partial loads and stores. load_between loads lanes begin to end - 1 and sets the others to `fill`; store_first stores
// the first `n` lanes; load_first loads them.
template <class T> INLINE vec<T> load_between(const T* p, long long begin, long long end, T fill) {
  if (begin <= 0 && end >= lanes) return load(p);
  auto v = all(fill);
  for (int l = begin > 0 ? begin : 0; l < end && l < lanes; ++l) set(v, l, p[l]);
  return v;
}
template <class T, class V> INLINE void store_first(T* p, long long n, V v) {
  if (n >= lanes) return store(p, v);
  T all_of[lanes];
  store(all_of, v);
  for (int l = 0; l < n; ++l) p[l] = all_of[l];
}
#ifdef AVX512
INLINE unsigned short first_lanes(long long n) { return n >= lanes ? -1 : n > 0 ? (1 << n) - 1 : 0; }
INLINE vec<float> load_between(const float* p, long long begin, long long end, float fill) {
  return __builtin_ia32_loadups512_mask(p, all(fill), first_lanes(end) & ~first_lanes(begin));
}
INLINE void store_first(float* p, long long n, vec<float> v) {
  n >= lanes ? store(p, v) : __builtin_ia32_storeups512_mask(p, v, first_lanes(n));
}
#endif
template <class T> INLINE vec<T> load_first(const T* p, long long n, T fill) { return n >= lanes ? load(p) : load_between(p, 0, n, fill); }
template <class T, class F> INLINE void combine_first(T* p, long long n, vec<T> v, F f) {
  if (n > 0) store_first(p, n, f(load_first(p, n, T(0)), v));
}

// Vectors of storage types (bf16, f16): loaded, stored and converted, but without arithmetic.
template <class T, class Bits> struct Stored { vec<Bits> bits; };
#define STORED(T, Bits) \
  typedef Stored<T, Bits> T##_vec; \
  template <> struct Vector<T> { typedef T##_vec type; }; \
  INLINE T##_vec load(const T* p) { return {load((const Bits*)p)}; } \
  INLINE void store(T* p, T##_vec v) { store((Bits*)p, v.bits); } \
  INLINE T##_vec all(T x) { return {all(x.bits)}; } \
  INLINE T##_vec choose(mask m, T##_vec a, T##_vec b) { return {choose(m, a.bits, b.bits)}; } \
  INLINE T lane(T##_vec v, int l) { return T{v.bits[l]}; } \
  INLINE void set(T##_vec& v, int l, T x) { v.bits[l] = x.bits; }

// Permutation of two vectors: lane l of the result is lane at[l] of the concatenation of `a` and `b`.
template <class V, class I> INLINE V shuffled(V a, V b, I at) {
#ifdef __clang__
  V v{};
  PER_LANE v[l] = at[l] < lanes ? a[at[l] % lanes] : b[at[l] % lanes];
  return v;
#else
  return __builtin_shuffle(a, b, at);
#endif
}

// Loads lane l from p + stepped(l), where stepped(l) is the sum of the steps[i] for which bit i of l is set. The
// elements are within two vectors of memory, which are loaded and permuted.
template <int... steps> constexpr int stepped(int l) { int at = 0, bit = 1; return ((at += l & bit ? steps : 0, bit *= 2), ..., at); }
template <int... steps, class T> INLINE vec<T> load_near(const T* p) {
  constexpr int all = lanes - 1, begin = stepped<(steps < 0 ? steps : 0)...>(all), last = stepped<(steps > 0 ? steps : 0)...>(all);
  const vec<T> low = load_first(p + begin, last - begin + 1, (T)0), high = last - begin > all ? load(p + last - all) : low;
  return shuffled(low, high, constants<typename Int<sizeof(T)>::type>([](int l) {
    int n = stepped<steps...>(l) - begin;
    return n > all ? n + begin - last + 2 * all + 1 : n;
  }));
}

// Reduces all lanes of `n` vectors to one scalar by the binary function f.
template <int n, class V, class F> INLINE auto reduced_lanes(const V (&x)[n], F f) {
  typedef std::remove_cv_t<std::remove_reference_t<decltype(x[0][0])>> T;
  auto v = x[0];
  for (int i = 1; i < n; ++i) v = f(v, x[i]);
#pragma GCC unroll 4
  for (int apart = lanes / 2; apart; apart /= 2)
    v = f(v, shuffled(v, v, constants<typename Int<sizeof(T)>::type>([&](int l) { return (l + apart) % lanes; })));
  return (T)v[0];
}

// Transposes a lanes x lanes matrix. Each step exchanges one bit of the row index with the same bit of the lane index.
template <class T> INLINE void transpose(T* to, long to_pitch, const T* from, long from_pitch) {
  typedef typename Int<sizeof(T)>::type word;
  vec<word> v[lanes];
#pragma GCC unroll 16
  for (int r = 0; r < lanes; ++r) v[r] = load((const word*)(from + r * from_pitch));
#pragma GCC unroll 4
  for (int h = 1; h < lanes; h *= 2) {
    const auto low = constants<word>([&](int l) { return l & h ? lanes + l - h : l; });
    const auto high = constants<word>([&](int l) { return l & h ? lanes + l : l + h; });
#pragma GCC unroll 16
    for (int r = 0; r < lanes; ++r)
      if (!(r & h)) {
        const auto a = v[r], b = v[r + h];
        v[r] = shuffled(a, b, low), v[r + h] = shuffled(a, b, high);
      }
  }
#pragma GCC unroll 16
  for (int r = 0; r < lanes; ++r) store((word*)(to + r * to_pitch), v[r]);
}

// Body of a function on a vector x that applies the scalar function F, which has no branches, to each element.
#define PER_ELEMENT(F) { std::remove_reference_t<decltype(x[0])> r[lanes]; store(r, x); PER_LANE r[l] = F(r[l]); return load(r); }
// The magnitude of `size` with the sign of `x` (copysign).
INLINE vec<float> with_sign(vec<float> size, vec<float> x) {
  return (vec<float>)(((mask)size & 0x7fffffff) | ((mask)x & (mask)all(-0.0f)));
}
// Maximum and minimum that return b if an operand is NaN. The x86 instructions do the same, but g++ does not select
// them.
template <class V> INLINE V larger(V a, V b) { return in_halves([](auto a, auto b) { return a > b ? a : b; }, a, b); }
template <class V> INLINE V smaller(V a, V b) { return in_halves([](auto a, auto b) { return a < b ? a : b; }, a, b); }
#ifdef AVX512
INLINE vec<float> larger(vec<float> a, vec<float> b) { return __builtin_ia32_maxps512_mask(a, b, b, -1, 4); }
INLINE vec<float> smaller(vec<float> a, vec<float> b) { return __builtin_ia32_minps512_mask(a, b, b, -1, 4); }
#elif defined(AVX)
INLINE vec<float> larger(vec<float> a, vec<float> b) { return __builtin_ia32_maxps256(a, b); }
INLINE vec<float> smaller(vec<float> a, vec<float> b) { return __builtin_ia32_minps256(a, b); }
#endif
template <class V> INLINE V magnitude(V v) { return in_halves([](auto v, auto minus) { return v < 0 ? minus : v; }, v, -v); }
#ifdef AVX512
// Works around a bug of g++: the magnitude of a zero-extended byte, truncated to a byte, becomes that of the signed
// byte. The empty asm hides the extension.
INLINE mask magnitude(mask v) { asm("" : "+v"(v)); return v < 0 ? -v : v; }
#endif
// Maximum and minimum that return NaN if an operand is NaN, as the scalar functions do.
template <class V> INLINE V max_nan(V a, V b) {
  if constexpr (sizeof(a[0]) > 4) return in_halves([](auto a, auto b) { return a != a || a > b ? a : b; }, a, b);
  return a != a ? a : larger(a, b);
}
template <class V> INLINE V min_nan(V a, V b) {
  if constexpr (sizeof(a[0]) > 4) return in_halves([](auto a, auto b) { return a != a || a < b ? a : b; }, a, b);
  return a != a ? a : smaller(a, b);
}
// Saturates 64-bit offsets to 32 bits. An offset out of range stays outside of every buffer.
INLINE mask narrow(mask x) { return x; }
INLINE mask narrow(vec<long long> x) {
#if defined(AVX512) && defined(HALVES)
  return join(__builtin_ia32_pmovsqd512_mask(low(x), half<int>{}, -1), __builtin_ia32_pmovsqd512_mask(high(x), half<int>{}, -1));
#else
  return convert<int>(smaller(larger(x, all(-0x7fffffffll)), all(0x7fffffffll)));
#endif
}
#ifdef AVX512
INLINE bool no_lane(mask m) { return !__builtin_ia32_cvtd2mask512(m); }
#elif defined(AVX)
INLINE bool no_lane(mask m) { return !__builtin_ia32_movmskps256((vec<float>)m); }
#endif
// Loads lane l from p + at[l]. Lanes outside the mask `inside` become `fill` and read nothing; nothing at or after
// `end` is read. If all offsets are within one or two consecutive vectors of memory (borders of images, every other
// element), it loads these vectors and permutes them.
template <class T> INLINE vec<T> gather(const T* p, const T* end, mask at, mask inside, T fill) {
#if defined(AVX512) || defined(AVX) && defined(__AVX2__)
  if constexpr (sizeof(T) == 4) {
    const mask known[1] = {choose(inside, at, all(0x7fffffff))};
    const long long low = reduced_lanes(known, [](auto a, auto b) { return smaller(a, b); });
    if (low == 0x7fffffff) return all(fill);
    const mask near = at - (int)low;
    if (no_lane(inside & (near >= lanes))) {
      const vec<T> window = load_first(p + low, end - (p + low), fill);
      return choose(inside, __builtin_shuffle(window, near), all(fill));
    }
    if (no_lane(inside & (near >= 2 * lanes))) {
      const T *const first = p + low, *const second = first + lanes;
      const vec<T> window = load(first), next = load_first(second, end - second, fill);
      return choose(inside, shuffled(window, next, near), all(fill));
    }
  }
#endif
#ifdef AVX512
  if constexpr (sizeof(T) == 4)
    return (vec<T>)__builtin_ia32_gathersiv16sf((vec<float>)all(fill), (const float*)p, at, __builtin_ia32_cvtd2mask512(inside), 4);
#elif defined(AVX) && defined(__AVX2__)
  if constexpr (sizeof(T) == 4)
    return (vec<T>)__builtin_ia32_gathersiv8sf((vec<float>)all(fill), (const float*)p, at, (vec<float>)inside, 4);
#endif
  auto v = all(fill);
  PER_LANE if (inside[l]) v[l] = p[at[l]];
  return v;
}

// Loads lane l from p[l * step]; `end`, `inside` and `fill` are as in gather.
template <int step, class T> INLINE vec<T> load_every(const T* p, const T* end, mask inside, T fill) {
#if defined(AVX512) && defined(__BMI2__)
  if constexpr (step == 2 && sizeof(T) == 4) {
    // Selects the even elements of two masked loads. Masked loads do not trigger the hardware prefetcher, so a software
    // prefetch reads one page ahead.
    const unsigned read = __builtin_ia32_pdep_si((unsigned short)__builtin_ia32_cvtd2mask512(inside), 0x55555555);
    const vec<float> fills = (vec<float>)all(fill);
    const vec<float> low = __builtin_ia32_loadups512_mask((const float*)p, fills, read);
    const vec<float> high = __builtin_ia32_loadups512_mask((const float*)p + lanes, fills, read >> lanes);
    __builtin_prefetch((const char*)p + 4096);
    return (vec<T>)shuffled(low, high, numbers<int>() * 2);
  }
#endif
  return gather(p, end, numbers<int>() * step, inside, fill);
}


// Atomics are plain accesses, which take a tenth of the time of locked ones: a kernel with atomics runs on one core.
#define ATOMIC(NAME, EXPRESSION) template <class T> INLINE T NAME(T* p, T v) { const T old = *p; *p = EXPRESSION; return old; }
ATOMIC(atomicAdd, old + v) ATOMIC(atomicMax, old < v ? v : old) ATOMIC(atomicMin, v < old ? v : old)
ATOMIC(atomicAnd, old & v) ATOMIC(atomicOr, old | v) ATOMIC(atomicXor, old ^ v)
template <class T> INLINE T atomicCAS(T* p, T expected, T v) { const T old = *p; if (old == expected) *p = v; return old; }

// Runs a kernel's blocks on `threads` cores. Cores take chunks of consecutive blocks dynamically, so a core that is
// busy with another process gets fewer. Seven eighths of the blocks are in large chunks, because long runs of memory
// are read fastest. The rest is in small chunks, so that all cores finish at about the same time.
template <class Blocks> static inline void all_blocks(int blocks, int threads, Blocks run) {
  if (threads > 1) {
    const long first = blocks * 7l / 8, large = min(first, 2l * threads), small = min(blocks - first, 8l * threads);
    const auto begin = [=](long s) { return s < large ? first * s / large : first + (blocks - first) * (s - large) / small; };
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (long s = 0; s < large + small; ++s) run(begin(s), begin(s + 1));
  } else if (blocks) {
    run(0, blocks);
  }
}

// Message of the first failed run-time check of a call, at most 200 characters. The buffer belongs to the call; each
// thread that works for the call holds a pointer to it.
static thread_local char* failure;
extern "C" int snprintf(char*, unsigned long, const char*, ...);
static void emu_assert(const char* what, long long x) {
#pragma omp critical
  if (!failure[0]) snprintf(failure, 200, "%s: %lld", what, x);
}
