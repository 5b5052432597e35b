// Loops that measure.py times: bandwidth of copies and reads, and throughput of FMA. `threads` cores share the work.
// The results are summed up, so that the compiler keeps the loops.
extern "C" void copy(float* to, const float* from, long n, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long i = 0; i < n; i += lanes) store(&to[i], load(&from[i]));
}

// Each core reads alternately from `streams` parts of the memory, as kernels that read several tensors or rows do.
extern "C" float read(const float* from, long n, int threads, int streams) {
  float total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
  {
    vec<float> sum[8] = {};
#pragma omp for schedule(static)
    for (long i = 0; i < n / streams; i += 8 * lanes)
      for (long at = i; at < n; at += n / streams)
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) sum[r] += load(&from[at + r * lanes]);
    for (int r = 0; r < 8; ++r) total += sum[r][0];
  }
  return total;
}

extern "C" float multiply(float by, long rounds, int threads) {
  float total = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : total)
  for (int t = 0; t < threads; ++t) {
    vec<float> sum[12] = {};
    const vec<float> a = all(by), b = all(by * 0.5f);
    for (long i = 0; i < rounds; ++i)
#pragma GCC unroll 12
      for (int r = 0; r < 12; ++r) sum[r] = fused(a, sum[r], b);
    for (int r = 0; r < 12; ++r) total += sum[r][0];
  }
  return total;
}
