// Vectors of `lanes` elements: the same text for AVX-512, AVX, NEON and SSE. A vector of truth values is one of int, -1 where
// they hold. Functions of vectors have the names of those of single elements.
#define __device__ __attribute__((always_inline)) inline
#define INLINE static inline __attribute__((always_inline))
#define PER_LANE for (int l = 0; l < lanes; ++l)

#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif

template <class T> struct Vector { typedef T type __attribute__((vector_size(lanes * sizeof(T)))); };
template <class T> using vec = typename Vector<T>::type;
typedef vec<int> mask;
template <> struct Vector<bool> { typedef mask type; };
template <int bytes> struct Int;
template <> struct Int<1> { typedef signed char type; };
template <> struct Int<2> { typedef short type; };
template <> struct Int<4> { typedef int type; };
template <> struct Int<8> { typedef long long type; };

template <class To, class V> INLINE vec<To> convert(V x) { return __builtin_convertvector(x, vec<To>); }
// A comparison is as wide as what is compared: of doubles, of bytes ...
template <class V> INLINE mask as_mask(V m) { return __builtin_convertvector(m, mask); }
template <class V> INLINE V choose(mask m, V a, V b) {
  return __builtin_convertvector(m, vec<typename Int<sizeof(a[0])>::type>) ? a : b;
}
template <class T> INLINE vec<T> all(T x) { return x - vec<T>{}; }
INLINE mask all(bool x) { return all(x ? -1 : 0); }
template <class T> INLINE vec<T> numbers() { vec<T> v; PER_LANE v[l] = l; return v; }

template <class T> INLINE vec<T> load(const T* p) { vec<T> v; __builtin_memcpy(&v, p, sizeof v); return v; }
template <class T> INLINE void store(T* p, vec<T> v) { __builtin_memcpy(p, &v, sizeof v); }
INLINE mask load(const bool* p) { return as_mask(load((const signed char*)p) != 0); }
INLINE void store(bool* p, mask m) { store((signed char*)p, convert<signed char>(m & 1)); }

// What has no vector instruction: lane by lane.
template <class T> INLINE void set(vec<T>& v, int l, T x) { v[l] = x; }
INLINE void set(mask& v, int l, bool x) { v[l] = x ? -1 : 0; }
template <class T, class F> INLINE vec<T> each(F f) {
  vec<T> v{};
  PER_LANE set(v, l, (T)f(l));
  return v;
}

// Storage types, on which nothing is computed.
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

// `n` elements combined: vector by vector, then the lanes.
template <int n, class T, class F> INLINE T reduced(const T* x, F f) {
  auto v = load(x);
  for (int i = lanes; i < n; i += lanes) v = f(v, load(x + i));
  T r = v[0];
  for (int l = 1; l < lanes; ++l) r = f(r, (T)v[l]);
  return r;
}

// `rows` rows of `n` elements combined, element by element.
template <int rows, int n, class T, class F> INLINE void reduced_rows(T* r, const T* x, F f) {
  for (int i = 0; i < n; i += lanes) {
    auto v = load(x + i);
    for (int j = 1; j < rows; ++j) v = f(v, load(x + j * n + i));
    store(r + i, v);
  }
}

// The body of a function of a vector: one without branches of each element.
#define PER_ELEMENT(F) { float r[lanes]; store(r, x); PER_LANE r[l] = F(r[l]); return load(r); }
INLINE vec<float> sqrtf(vec<float> x) PER_ELEMENT(__builtin_sqrtf)
INLINE vec<float> fabsf(vec<float> x) PER_ELEMENT(__builtin_fabsf)
INLINE vec<float> floorf(vec<float> x) PER_ELEMENT(__builtin_floorf)
INLINE vec<float> ceilf(vec<float> x) PER_ELEMENT(__builtin_ceilf)
INLINE vec<float> truncf(vec<float> x) PER_ELEMENT(__builtin_truncf)
INLINE vec<float> rintf(vec<float> x) PER_ELEMENT(__builtin_rintf)
INLINE vec<float> with_sign(vec<float> size, vec<float> x) {
  return (vec<float>)(((mask)size & 0x7fffffff) | ((mask)x & (mask)all(-0.0f)));
}
// As for single elements, NaN wins.
template <class V> INLINE V max_nan(V a, V b) { return ((a > b) | (a != a)) ? a : b; }
template <class V> INLINE V min_nan(V a, V b) { return ((a < b) | (a != a)) ? a : b; }

#define ATOMIC(NAME, EXPRESSION) template <class T> static T NAME(T* p, T v) { \
  T old = *p, result; do { result = EXPRESSION; } while (!__atomic_compare_exchange(p, &old, &result, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); return old; }
ATOMIC(atomicAdd, old + v) ATOMIC(atomicMax, old < v ? v : old) ATOMIC(atomicMin, v < old ? v : old)
ATOMIC(atomicAnd, old & v) ATOMIC(atomicOr, old | v) ATOMIC(atomicXor, old ^ v)
template <class T> static T atomicCAS(T* p, T expected, T v) { __atomic_compare_exchange(p, &expected, &v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); return expected; }
