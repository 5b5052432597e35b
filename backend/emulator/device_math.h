// CUDA's math functions, conversions and bit operations for the host compiler, in the same precision.
#pragma once

#define EMU_UNARY(NAME)                     \
  extern "C" float NAME##f(float) noexcept; \
  extern "C" double NAME(double) noexcept;
EMU_UNARY(exp)
EMU_UNARY(exp2)
EMU_UNARY(expm1)
EMU_UNARY(log)
EMU_UNARY(log2)
EMU_UNARY(log10)
EMU_UNARY(log1p)
EMU_UNARY(sqrt)
EMU_UNARY(cbrt)
EMU_UNARY(sin)
EMU_UNARY(cos)
EMU_UNARY(tan)
EMU_UNARY(asin)
EMU_UNARY(acos)
EMU_UNARY(atan)
EMU_UNARY(sinh)
EMU_UNARY(cosh)
EMU_UNARY(tanh)
EMU_UNARY(asinh)
EMU_UNARY(acosh)
EMU_UNARY(atanh)
EMU_UNARY(erf)
EMU_UNARY(erfc)
EMU_UNARY(lgamma)
EMU_UNARY(tgamma)
EMU_UNARY(floor)
EMU_UNARY(ceil)
EMU_UNARY(trunc)
EMU_UNARY(round)
EMU_UNARY(rint)
EMU_UNARY(nearbyint)
EMU_UNARY(fabs)
#undef EMU_UNARY

#define EMU_BINARY(NAME)                           \
  extern "C" float NAME##f(float, float) noexcept; \
  extern "C" double NAME(double, double) noexcept;
EMU_BINARY(pow)
EMU_BINARY(fmod)
EMU_BINARY(remainder)
EMU_BINARY(fmax)
EMU_BINARY(fmin)
EMU_BINARY(atan2)
EMU_BINARY(hypot)
EMU_BINARY(copysign)
EMU_BINARY(nextafter)
#undef EMU_BINARY

extern "C" float fmaf(float, float, float) noexcept;
extern "C" double fma(double, double, double) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" int abs(int) noexcept;
extern "C" long long llabs(long long) noexcept;

template <class To, class From>
inline To emu_bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
inline float __int_as_float(int x) { return emu_bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return emu_bit_cast<float>(x); }
inline int __float_as_int(float x) { return emu_bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return emu_bit_cast<unsigned>(x); }
inline double __longlong_as_double(long long x) { return emu_bit_cast<double>(x); }
inline long long __double_as_longlong(double x) { return emu_bit_cast<long long>(x); }

// CUDA's fast functions. They are macros, because the host's headers declare some of these names.
#define __expf expf
#define __exp2f exp2f
#define __logf logf
#define __log2f log2f
#define __sinf sinf
#define __cosf cosf
#define __powf powf

inline float rsqrtf(float x) { return float(1.0 / sqrt(double(x))); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

// Float to integer conversions as on a GPU, where C++ leaves the result undefined: they saturate. NaN becomes 0, or the
// smallest number for 64 bits.
template <class Int, class Float>
inline Int emu_to_int(Float x) {
  const Int low = Int(1) << (sizeof(Int) * 8 - 1), high = ~low;
  if (x != x) return sizeof(Int) == 4 ? 0 : low;
  if (x <= Float(low)) return low;
  return x >= -Float(low) ? high : Int(x);
}
inline int __float2int_rz(float x) { return emu_to_int<int>(x); }
inline int __float2int_rn(float x) { return emu_to_int<int>(rintf(x)); }
inline long long __float2ll_rz(float x) { return emu_to_int<long long>(x); }
inline int __double2int_rz(double x) { return emu_to_int<int>(x); }
inline long long __double2ll_rz(double x) { return emu_to_int<long long>(x); }
inline float __int2float_rn(int x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }

#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

template <class T>
inline T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
inline T max(T a, T b) {
  return a < b ? b : a;
}
// Mixed signedness, as in CUDA: both operands count as unsigned.
inline unsigned min(unsigned a, int b) { return min<unsigned>(a, b); }
inline unsigned min(int a, unsigned b) { return min<unsigned>(a, b); }
inline unsigned max(unsigned a, int b) { return max<unsigned>(a, b); }
inline unsigned max(int a, unsigned b) { return max<unsigned>(a, b); }
