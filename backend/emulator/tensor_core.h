// Rounding of tensor cores, as measured and published: Fasi et al., "Numerical behavior of NVIDIA tensor cores" (2021);
// Li et al., "FTTN" (2024); Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores" (2022); Khattak
// and Mikaitis, "Accurate models of NVIDIA tensor cores" (2025). Part of runtime.cpp.
#pragma once

// A tensor core adds the accumulator and `terms` products in one step. Products are exact. All addends are aligned to
// the largest exponent and truncated to the 24 bits of f32 plus `extra` bits. The sum is truncated to f32.
//
//               terms (16 bits)    terms (tf32)    extra
//   Volta              4                 -           0
//   Ampere, Ada        8                 4           1
//   Hopper            16                 8           2
//
// mma.sync is emulated as on Ampere, the least exact GPU that has the instruction; wgmma as on Hopper.
constexpr int ampere_extra = 1, hopper_extra = 2;

// Returns the stored exponent of an operand. The exponent of a product is the sum of two, because the hardware does not
// normalise a product before it aligns it.
inline int exponent_of(float x) {
  u32 bits;
  std::memcpy(&bits, &x, 4);
  return std::max<int>(bits >> 23 & 255, 1) - 127;
}

// Rounds `x` to f32 toward zero.
inline float toward_zero(double x) {
  const float nearest = float(x);
  return std::isfinite(nearest) && std::fabs(nearest) > std::fabs(x) ? std::nextafter(nearest, 0.0f) : nearest;
}

// Returns `sum` plus the products a[i] * b[i], rounded as described above.
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
