#include <cuda_runtime.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

// --- host helpers
inline void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(2);
}
inline void to_device(void* to, const void* from, size_t bytes) {
  must(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}
inline void to_host(void* to, const void* from, size_t bytes) {
  must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

// Allocates device memory for `n` elements. All bits are set, so an element that no kernel writes is not a number.
template <class T>
inline T* allocate(size_t n) {
  void* p = nullptr;
  must(cudaMalloc(&p, n ? n * sizeof(T) : 1));
  must(cudaMemset(p, 0xff, n * sizeof(T)));
  return (T*)p;
}
