// Defines CUDA's language extensions for the host compiler: qualifiers, thread and block indices, vector types and
// synchronisation. Printed kernels compile with it unchanged, except for helpers in inline assembly, which get a host
// body.
#pragma once
#include "emulator.h"
#include "device_math.h"

#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __constant__ static const
#define __shared__ static __attribute__((section("emu_shared")))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __restrict__
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx (emu_thread_index())
#define blockIdx (emu_block_index())
#define blockDim (emu_block_extent())
#define gridDim (emu_grid_extent())
#define warpSize 32

// ---- kernels, called with an array of pointers to their arguments ----

template <int... I>
struct EmuNumbers {};
template <int N, int... I>
struct EmuCount : EmuCount<N - 1, N - 1, I...> {};
template <int... I>
struct EmuCount<0, I...> {
  using type = EmuNumbers<I...>;
};
// Copies the arguments from the runtime's memory, without instrumentation: the kernel itself may not access that
// memory.
template <class... A, int... I>
__attribute__((no_sanitize("thread"), noinline)) inline void emu_apply(void (*kernel)(A...), void** arguments, EmuNumbers<I...>) {
  kernel(*static_cast<A*>(arguments[I])...);
}
extern "C" __attribute__((visibility("hidden"))) unsigned char __start_emu_shared[], __stop_emu_shared[];
__shared__ __attribute__((used)) unsigned char emu_shared_variable[16];
template <class... A>
inline void emu_call(void (*kernel)(A...), void** arguments) {
  emu_shared_variables(__start_emu_shared, __stop_emu_shared);
  emu_apply(kernel, arguments, typename EmuCount<sizeof...(A)>::type());
}

// ---- local arrays: aligned exactly as declared, so that accesses that need more are detected ----

template <class T, int N, int A>
struct EmuArray {
  __align__(2 * A) char before[A];
  T array[N];
};

// ---- vector types: aligned to their size, which -fsanitize=alignment checks ----

// Checks the alignment of a vector access. The empty asm hides the declared alignment from the compiler, which would
// remove the check.
inline void emu_wide(const void* p, unsigned size) {
  asm volatile("" : "+r"(p));
  if (reinterpret_cast<unsigned long>(p) & (size - 1)) emu_vector_access(p, size);
}
// Products of f64 on tensor cores: every operation rounds as in IEEE 754.
inline double emu_add_products(double sum, const double* a, const double* b, int terms) {
  for (int i = 0; i < terms; ++i) sum += a[i] * b[i];
  return sum;
}
#define EMU_VECTOR2(NAME, T)                                                             \
  struct __align__(2 * sizeof(T)) NAME {                                                 \
    T x, y;                                                                              \
    NAME() = default;                                                                    \
    NAME(T x, T y) : x(x), y(y) {}                                                       \
    NAME(const NAME& o) { *this = o; }                                                   \
    NAME& operator=(const NAME& o) {                                                     \
      x = o.x, y = o.y;                                                                  \
      return *this;                                                                      \
    }                                                                                    \
  };                                                                                     \
  inline NAME make_##NAME(T x, T y) { return NAME(x, y); }
#define EMU_VECTOR4(NAME, T)                                                             \
  struct __align__(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) NAME {                       \
    T x, y, z, w;                                                                        \
    NAME() = default;                                                                    \
    NAME(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}                                 \
    NAME(const NAME& o) { *this = o; }                                                   \
    NAME& operator=(const NAME& o) {                                                     \
      x = o.x, y = o.y, z = o.z, w = o.w;                                                \
      return *this;                                                                      \
    }                                                                                    \
  };                                                                                     \
  inline NAME make_##NAME(T x, T y, T z, T w) { return NAME(x, y, z, w); }
EMU_VECTOR2(char2, signed char)
EMU_VECTOR2(uchar2, unsigned char)
EMU_VECTOR2(short2, short)
EMU_VECTOR2(ushort2, unsigned short)
EMU_VECTOR2(int2, int)
EMU_VECTOR2(uint2, unsigned)
EMU_VECTOR2(float2, float)
EMU_VECTOR2(double2, double)
EMU_VECTOR2(longlong2, long long)
EMU_VECTOR2(ulonglong2, unsigned long long)
EMU_VECTOR4(char4, signed char)
EMU_VECTOR4(uchar4, unsigned char)
EMU_VECTOR4(short4, short)
EMU_VECTOR4(ushort4, unsigned short)
EMU_VECTOR4(int4, int)
EMU_VECTOR4(uint4, unsigned)
EMU_VECTOR4(float4, float)

// ---- synchronisation ----

#define __syncthreads() emu_barrier(__LINE__, "__syncthreads")
#define __syncwarp(...) emu_sync_warp(__LINE__, "__syncwarp", EmuMask(__VA_ARGS__).bits)
#define __trap() emu_trap(__LINE__, "__trap")
#define __threadfence()
#define __threadfence_block()

struct EmuMask {
  unsigned bits;
  explicit EmuMask(unsigned bits = ~0u) : bits(bits) {}
};

template <class T>
inline unsigned long long emu_bits(T value) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T>
inline T emu_exchanged(int line, const char* name, unsigned mask, T value, int source) {
  const unsigned long long bits = emu_exchange(line, name, mask, emu_bits(value), source);
  T result;
  __builtin_memcpy(&result, &bits, sizeof result);
  return result;
}
inline int emu_lane() { return int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32; }
// A source outside the lane's group of `width` lanes leaves the lane its own value, as on the device.
template <class T>
inline T emu_shuffle(int line, const char* name, unsigned mask, T value, int source, int width, bool inside) {
  const int lane = emu_lane(), group = lane / width * width;
  return emu_exchanged(line, name, mask, value, inside ? group + source : lane);
}
template <class T>
inline T emu_shfl(int line, unsigned mask, T value, int source, int width = 32) {
  return emu_shuffle(line, "__shfl_sync", mask, value, source & (width - 1), width, true);
}
template <class T>
inline T emu_shfl_xor(int line, unsigned mask, T value, int bits, int width = 32) {
  const int source = emu_lane() % width ^ bits;
  return emu_shuffle(line, "__shfl_xor_sync", mask, value, source, width, source < width);
}
template <class T>
inline T emu_shfl_down(int line, unsigned mask, T value, int delta, int width = 32) {
  const int source = emu_lane() % width + delta;
  return emu_shuffle(line, "__shfl_down_sync", mask, value, source, width, source < width);
}
template <class T>
inline T emu_shfl_up(int line, unsigned mask, T value, int delta, int width = 32) {
  const int source = emu_lane() % width - delta;
  return emu_shuffle(line, "__shfl_up_sync", mask, value, source, width, source >= 0);
}
#define __cvta_generic_to_shared(p) emu_shared_address(p)
#define __shfl_sync(...) emu_shfl(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) emu_shfl_xor(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) emu_shfl_down(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) emu_shfl_up(__LINE__, __VA_ARGS__)
#define __ballot_sync(mask, predicate) emu_ballot(__LINE__, "__ballot_sync", mask, predicate)
#define __any_sync(mask, predicate) (emu_ballot(__LINE__, "__any_sync", mask, predicate) != 0)
#define __all_sync(mask, predicate) (emu_ballot(__LINE__, "__all_sync", mask, !(predicate)) == 0)

// Atomics report their access themselves: the compiler's instrumentation would report an ordinary access.
#define EMU_ATOMIC(name, expression)                                                      \
  template <class T>                                                                      \
  __attribute__((no_sanitize("thread"), noinline)) inline T name(T* address, T value) {   \
    emu_atomic_access(address, sizeof(T));                                                \
    const T old = *address;                                                               \
    *address = expression;                                                                \
    return old;                                                                           \
  }
EMU_ATOMIC(atomicAdd, old + value)
EMU_ATOMIC(atomicMax, old < value ? value : old)
EMU_ATOMIC(atomicMin, value < old ? value : old)
EMU_ATOMIC(atomicAnd, old & value)
EMU_ATOMIC(atomicOr, old | value)
EMU_ATOMIC(atomicXor, old ^ value)
#undef EMU_ATOMIC
template <class T>
__attribute__((no_sanitize("thread"), noinline)) inline T atomicCAS(T* address, T expected, T value) {
  emu_atomic_access(address, sizeof(T));
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}
