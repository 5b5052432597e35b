
// How fast the cores copy, read and multiply. Everything is done in shares of a core; what is read is summed up.
typedef vec<float> Row;
static inline long begin(long n, int threads, int t) { return n / lanes * t / threads * lanes; }

extern "C" void copy(float* to, const float* from, long n, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int t = 0; t < threads; ++t)
    for (long i = begin(n, threads, t); i < begin(n, threads, t + 1); i += lanes) store(&to[i], load(&from[i]));
}

// A core reads from as many places in turn as there are `streams`: kernels read several tensors and rows at once.
extern "C" float read(const float* from, long n, int threads, int streams) {
  float total = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : total)
  for (int t = 0; t < threads; ++t) {
    Row sum[8] = {};
    const long first = begin(n, threads, t), part = (begin(n, threads, t + 1) - first) / (8 * lanes * streams) * 8 * lanes;
    for (long i = first; i < first + part; i += 8 * lanes)
      for (long at = i; at < i + streams * part; at += part)
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
    Row sum[12] = {};
    const Row a = all(by), b = all(by * 0.5f);
    for (long i = 0; i < rounds; ++i)
#pragma GCC unroll 12
      for (int r = 0; r < 12; ++r) sum[r] = fused(a, sum[r], b);
    for (int r = 0; r < 12; ++r) total += sum[r][0];
  }
  return total;
}
extern "C" int width() { return lanes; }
