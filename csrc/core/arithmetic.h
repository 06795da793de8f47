// Integer arithmetic of planning and kernels: rounding, and division by an invariant divisor.
#pragma once

#include <cstdint>

namespace convx {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// The remainder that has the sign of b.
inline int64_t floor_mod(int64_t a, int64_t b) {
  const int64_t m = a % b;
  return m < 0 ? m + b : m;
}

// For values that are known to fit.
constexpr int narrow(int64_t value) { return static_cast<int>(value); }

// Division by an invariant divisor: one multiplication and a shift.
struct FastDivmod {
  uint32_t divisor = 1;
  uint32_t multiplier = 1;
  uint32_t shift = 0;

  FastDivmod() = default;

  // Granlund and Montgomery: with shift = ceil(log2 d) the quotient of any n < 2^31 is
  // (umulhi(n, multiplier) + n) >> shift.
  constexpr explicit FastDivmod(int64_t d) : divisor(static_cast<uint32_t>(d)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    multiplier = static_cast<uint32_t>(
        ((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1);
  }

#ifdef __CUDACC__
  __device__ int divide(int n) const {
    const uint32_t u = static_cast<uint32_t>(n);
    return static_cast<int>((__umulhi(u, multiplier) + u) >> shift);
  }

  // Returns n mod divisor and leaves the quotient in n.
  __device__ int split(int& n) const {
    const int quotient = divide(n);
    const int remainder = n - quotient * static_cast<int>(divisor);
    n = quotient;
    return remainder;
  }
#endif
};

}  // namespace convx
