// Replacement of the CUDA runtime for standalone programs: implements the functions that they use on the emulator. A
// program then builds with the host compiler alone, and a launch fails if its kernel has an error that the emulator
// detects.
#pragma once
#include <cstring>

#include "device.h"

typedef int cudaError_t;
typedef int cudaStream_t;
enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorLaunchFailure = 719 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

extern "C" {
void* emu_host_allocate(unsigned long size);
void emu_host_initialised(void* memory);
int emu_host_launch(void (*call)(void**), const unsigned* grid, const unsigned* extent, unsigned long shared,
                    void** arguments, unsigned cluster, unsigned registers);
}

// Launch attributes in the declaration of a kernel: blocks per cluster, and registers per thread at launch (0: chosen
// by the compiler). The program has one object per kernel; the objects form a list, whose head is `last`.
struct EmuBounds {
  const void* kernel;
  unsigned cluster, registers;
  const EmuBounds* before;
  static const EmuBounds*& last() {
    static const EmuBounds* head = nullptr;
    return head;
  }
  EmuBounds(const void* kernel, unsigned cluster, unsigned registers)
      : kernel(kernel), cluster(cluster), registers(registers), before(last()) {
    last() = this;
  }
  static const EmuBounds& of(const void* kernel) {
    const EmuBounds* b = last();
    while (b->kernel != kernel) b = b->before;
    return *b;
  }
};

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "a kernel did what it must not" : error ? "out of memory" : "no error";
}
inline cudaError_t cudaMalloc(void** memory, unsigned long size) {
  *memory = emu_host_allocate(size);
  return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaMemset(void* memory, int value, unsigned long size) {
  std::memset(memory, value, size);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, unsigned long size, cudaMemcpyKind kind) {
  std::memcpy(to, from, size);
  if (kind == cudaMemcpyHostToDevice) emu_host_initialised(to);
  return cudaSuccess;
}

// Replacement of cuTensorMapEncodeTiled: writes a tensor map of the emulator (BoxMap in asynchronous.h).
#define CUDART_VERSION 13000
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };
enum { cudaEnableDefault = 0 };
inline int emu_encode_tiled(void* map, int type, unsigned rank, void* memory, const unsigned long long* extents,
                            const unsigned long long*, const unsigned* box, const unsigned*, int, int swizzle, int,
                            int) {
  static const int items[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2}, rows[] = {0, 32, 64, 128};
  unsigned long long words[16] = {(unsigned long long)memory, rank, (unsigned long long)rows[swizzle],
                                  (unsigned long long)items[type]};
  for (unsigned d = 0; d < 5; ++d) {
    words[4 + d] = d < rank ? extents[rank - 1 - d] : 1;
    words[9 + d] = d < rank ? box[rank - 1 - d] : 1;
  }
  std::memcpy(map, words, sizeof words);
  return 0;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* result) {
  *function = (void*)emu_encode_tiled;
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
template <class... A>
cudaError_t cudaFuncSetAttribute(void (*)(A...), cudaFuncAttribute, int) {
  return cudaSuccess;
}

template <class... A>
struct EmuCurrent {
  static void (*kernel)(A...);
  __attribute__((no_sanitize("thread"))) static void call(void** arguments) { emu_call(kernel, arguments); }
};
template <class... A>
void (*EmuCurrent<A...>::kernel)(A...);

template <class... A>
cudaError_t cudaLaunchKernel(void (*kernel)(A...), dim3 grid, dim3 block, void** arguments, unsigned long shared,
                             cudaStream_t) {
  EmuCurrent<A...>::kernel = kernel;
  const unsigned blocks[3] = {grid.x, grid.y, grid.z}, threads[3] = {block.x, block.y, block.z};
  const EmuBounds& bounds = EmuBounds::of(reinterpret_cast<const void*>(kernel));
  const int stopped = emu_host_launch(EmuCurrent<A...>::call, blocks, threads, shared, arguments, bounds.cluster,
                                     bounds.registers);
  return stopped ? cudaErrorLaunchFailure : cudaSuccess;
}
