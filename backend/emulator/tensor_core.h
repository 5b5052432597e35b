// Sums of tensor cores as measured and published: Fasi et al., "Numerical behavior of NVIDIA tensor cores" (2021); Li et
// al., "FTTN" (2024); Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores" (2022); Khattak and
// Mikaitis, "Accurate models of NVIDIA tensor cores" (2025). Part of runtime.cpp.
#pragma once

// `terms` products and the accumulator are added at once: products are exact, all addends are aligned to the largest
// exponent, and bits below the last of f32 are dropped except `extra` ones; so are those of the sum.
//
//               terms of 16 bits   terms of tf32   extra
//   Volta              4                 -           0
//   Ampere, Ada        8                 4           1
//   Hopper            16                 8           2
//
// A product of a warp is summed as on Ampere, the least exact GPU that has the instruction.
constexpr int ampere_extra = 1, hopper_extra = 2;

// The exponent of a factor, as stored: a product is not normalised before it is aligned.
inline int exponent_of(float x) {
  u32 bits;
  std::memcpy(&bits, &x, 4);
  return std::max<int>(bits >> 23 & 255, 1) - 127;
}

// The number nearest to `x` in f32 that is not larger in size.
inline float toward_zero(double x) {
  const float nearest = float(x);
  return std::isfinite(nearest) && std::fabs(nearest) > std::fabs(x) ? std::nextafter(nearest, 0.0f) : nearest;
}

inline float add_products(float sum, const float* a, const float* b, int terms, int extra) {
  constexpr int fraction = 23, none = -1000;
  int largest = sum == 0 ? none : exponent_of(sum);
  float check = sum;
  for (int i = 0; i < terms; ++i) {
    check += a[i] * b[i];
    if (a[i] != 0 && b[i] != 0) largest = std::max(largest, exponent_of(a[i]) + exponent_of(b[i]));
  }
  if (largest == none || !std::isfinite(check)) return check;
  const int shift = fraction + extra - largest;
  const double scale = std::ldexp(1.0, shift);
  long long total = static_cast<long long>(double(sum) * scale);
  for (int i = 0; i < terms; ++i) total += static_cast<long long>(double(a[i]) * double(b[i]) * scale);
  return toward_zero(std::ldexp(double(total), -shift));
}
