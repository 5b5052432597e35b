#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <omp.h>
#include <vector>

// --- host helpers
namespace host {
inline void to_device(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
inline void to_host(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

// Allocates memory for `n` elements, aligned to a cache line. All bits are set, so an element that no kernel writes is
// not a number.
template <class T>
inline T* allocate(size_t n) {
  const size_t bytes = (n * sizeof(T) / 64 + 1) * 64;
  void* p = std::aligned_alloc(64, bytes);
  if (!p) std::exit(2);
  return (T*)std::memset(p, 0xff, bytes);
}

// Calls `run` for half a second, at least three times, and prints the median time of a call.
template <class Run>
inline void measure(Run run) {
  typedef std::chrono::steady_clock Clock;
  std::vector<double> times;
  for (const auto start = Clock::now(); Clock::now() - start < std::chrono::milliseconds(500) || times.size() < 3;) {
    const auto begin = Clock::now();
    run();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  std::printf("time: %.3g us, the median of %zu calls on %d threads\n", times[times.size() / 2], times.size(),
              omp_get_max_threads());
}
