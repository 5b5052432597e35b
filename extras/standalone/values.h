struct Half { unsigned short bits; };
struct Brain { unsigned short bits; };

// Element `i` of the random sequence `stream`. `random_words` in Python computes the same words.
inline unsigned long long random_word(unsigned long long stream, unsigned long long i) {
  unsigned long long x = (i + 1) * 0x9E3779B97F4A7C15ull + stream * 0xD1B54A32D192ED03ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
inline double random_fraction(unsigned long long stream, unsigned long long i, int bits) {
  const long long half = 1ll << bits;
  return double((long long)(random_word(stream, i) >> (63 - bits)) - half) / double(half);
}

// Conversions between double and the element types. Values that are stored are exact in their type, so nothing is
// rounded.
inline void store(double& x, double v) { x = v; }
inline void store(float& x, double v) { x = float(v); }
inline void store(Brain& x, double v) {
  const float f = float(v);
  unsigned u;
  std::memcpy(&u, &f, 4);
  x.bits = (unsigned short)(u >> 16);
}
inline void store(Half& x, double v) {
  int e;
  const double m = std::frexp(std::fabs(v), &e);  // v = m * 2^e with m in [1/2, 1), no subnormal numbers
  const unsigned bits = m == 0 ? 0 : (unsigned(e + 14) << 10) | (unsigned(std::ldexp(m, 11)) & 0x3ffu);
  x.bits = (unsigned short)(bits | (std::signbit(v) ? 0x8000u : 0u));
}
inline double load(double x) { return x; }
inline double load(float x) { return x; }
inline double load(Brain x) {
  const unsigned u = unsigned(x.bits) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline double load(Half x) {
  const int e = x.bits >> 10 & 31, f = x.bits & 0x3ff;
  const double v = e == 31 ? (f ? NAN : INFINITY) : e ? std::ldexp(1024 + f, e - 25) : std::ldexp(double(f), -24);
  return x.bits & 0x8000 ? -v : v;
}

template <class T>
inline T* upload(const std::vector<T>& values) {
  T* p = allocate<T>(values.size());
  to_device(p, values.data(), values.size() * sizeof(T));
  return p;
}
template <class T>
inline T* fractions(unsigned long long stream, size_t n, int bits) {
  std::vector<T> values(n);
  for (size_t i = 0; i < n; ++i) store(values[i], random_fraction(stream, i, bits));
  return upload(values);
}
template <class T>
inline T* integers(unsigned long long stream, size_t n) {
  std::vector<T> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = T(random_word(stream, i) >> 62);
  return upload(values);
}
template <>
inline bool* integers<bool>(unsigned long long stream, size_t n) {
  std::vector<char> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = (random_word(stream, i) >> 62) > 1;
  return (bool*)upload(values);
}

// Checks a result of `n` elements. `count` sampled elements (every `step`-th) must be within `tolerance` of `want`. The
// fingerprint, a sum of all finite elements with random weights, must be within tolerance * (n + 1). The number of
// elements that are not finite must be `not_finite`. Prints differences and returns true if all agree.
template <class T>
inline bool check_floats(const T* device, size_t n, const double* want, size_t count, size_t step, double tolerance,
                         double fingerprint, size_t not_finite, int number) {
  std::vector<T> got(n);
  to_host(got.data(), device, n * sizeof(T));
  double sum = 0, worst = 0;
  size_t odd = 0;
  for (size_t i = 0; i < n; ++i) {
    const double v = load(got[i]);
    if (std::isfinite(v)) sum += v * random_fraction(1ull << 20, i, 24);
    else ++odd;
  }
  bool good = odd == not_finite && std::fabs(sum - fingerprint) <= tolerance * (double(n) + 1);
  if (!good) std::printf("result %d: fingerprint %.9g, not %.9g; %zu values not finite, not %zu\n", number, sum,
                         fingerprint, odd, not_finite);
  for (size_t i = 0; i < count; ++i) {
    const double v = load(got[i * step % n]), w = want[i];
    const bool same = std::isfinite(w) ? std::fabs(v - w) <= tolerance : v == w || (v != v && w != w);
    if (std::isfinite(w) && std::isfinite(v)) worst = std::fmax(worst, std::fabs(v - w));
    if (!same && good) std::printf("result %d: element %zu is %.9g, not %.9g\n", number, i * step % n, v, w);
    good &= same;
  }
  std::printf("result %d: %zu elements, largest error %.3g of %.3g allowed\n", number, n, worst, tolerance);
  return good;
}
template <class T>
inline bool check_integers(const T* device, size_t n, unsigned long long want, int number) {
  std::vector<char> bytes(n * sizeof(T));
  to_host(bytes.data(), device, bytes.size());
  const T* got = (const T*)bytes.data();
  unsigned long long sum = 0;
  for (size_t i = 0; i < n; ++i) sum += (unsigned long long)(long long)got[i] * (random_word(1ull << 20, i) | 1);
  std::printf("result %d: %zu integers, %s\n", number, n, sum == want ? "equal" : "different");
  return sum == want;
}
