// float32 values as float16, scaled by powers of 2.
//
// float16 has TF32's 11 bits, and two of them nearly float32's 24, but only 2^30 from its smallest
// normal number to its largest, and below it precision is lost. So each filter is scaled by its
// largest value, and the source by the largest of a sample, with room above it for what the sample
// missed. What lies below is at risk: it is known to so many bits of the largest value, not of its
// own. Among larger values it is lost in their rounding errors, as it would be in float32; where it
// is not among larger ones, or where a value is too large, infinite, or NaN, the tensors are
// unfit.
#pragma once

#include <cstdint>

#include "engines/half_scales.h"

namespace convx {

// The largest value's binary exponent, scaled. Nothing of a filter is larger; of the source, what
// the sample missed may be 2^7 times as large.
inline constexpr int kFilterExponent = 14;
inline constexpr int kSourceExponent = 8;

// Negative where most of a filter's values have the same sign.
__device__ __forceinline__ float* filter_scales(HalfScales* scales) {
  return reinterpret_cast<float*>(scales + 1);
}
__device__ __forceinline__ const float* filter_scales(const HalfScales* scales) {
  return reinterpret_cast<const float*>(scales + 1);
}

// The power of 2 that takes a value, given by its bits without the sign, to an exponent.
__device__ __forceinline__ float find_scale(uint32_t largest, int exponent) {
  if (largest == 0) return 1;
  const int biased = 2 * 127 + exponent - static_cast<int>(largest >> 23);
  return __uint_as_float(static_cast<uint32_t>(min(biased, 253)) << 23);
}

// What takes a sum of products back: 1 / (source * filter), in two factors, since it may be beyond
// float32.
struct Unscale {
  float first = 1, second = 1;

  Unscale() = default;
  __device__ __forceinline__ Unscale(float source, float filter) {
    const int exponent = 2 * 127 - static_cast<int>(__float_as_uint(source) >> 23) -
                         static_cast<int>(__float_as_uint(fabsf(filter)) >> 23);
    const int half = exponent / 2;
    first = __uint_as_float(static_cast<uint32_t>(127 + half) << 23);
    second = __uint_as_float(static_cast<uint32_t>(127 + exponent - half) << 23);
  }
};

// Of a scaled value.
struct HalfFitness {
  bool at_risk, safe, beyond;

  __device__ __forceinline__ explicit HalfFitness(float scaled) {
    constexpr uint32_t kSmallest = 0x38800000;  // 2^-14
    constexpr uint32_t kTooLarge = 0x477ff000;  // 65520 is rounded to infinity
    const uint32_t bits = __float_as_uint(scaled) & 0x7fffffffu;
    at_risk = bits - 1 < kSmallest - 1;  // zero is not
    safe = bits >= kSmallest;
    beyond = bits >= kTooLarge;
  }
};

// Whether values are not among larger ones. A single one may be an accident.
__device__ __forceinline__ bool is_unfit(int at_risk, int safe) { return at_risk >= safe + 2; }

// Looks at kCount values of each lane. peers: the lanes whose first values belong together, and
// whose second, and so on; most often nothing is at risk, and that is seen soon.
template <int kCount>
__device__ __forceinline__ void check_fitness(HalfScales* scales, const float (&scaled)[kCount],
                                              uint32_t peers) {
  bool doubtful = false;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const HalfFitness fitness(scaled[i]);
    doubtful |= fitness.at_risk || fitness.beyond;
  }
  if (!__any_sync(0xffffffff, doubtful)) return;
#pragma unroll 1
  for (int i = 0; i < kCount; ++i) {
    float value = 0;
#pragma unroll
    for (int j = 0; j < kCount; ++j) value = i == j ? scaled[j] : value;  // stays in registers
    const HalfFitness fitness(value);
    const int at_risk = __popc(__ballot_sync(0xffffffff, fitness.at_risk) & peers);
    const int safe = __popc(__ballot_sync(0xffffffff, fitness.safe) & peers);
    if (fitness.beyond || is_unfit(at_risk, safe)) scales->unfit = 1;  // whoever says so
  }
}

// Scales some neighbouring values of a filter, of all groups', and says so where they are not fit.
template <int kCount>
__device__ __forceinline__ void scale_filter(HalfScales* scales, int filter,
                                             float (&values)[kCount]) {
  const float signed_scale = filter_scales(scales)[filter];
  const float scale = fabsf(signed_scale);
  if (signed_scale < 0 && scales->one_signed != 0) scales->careful = 1;  // whoever says so
  int at_risk = 0, safe = 0;
  bool beyond = false;
#pragma unroll
  for (float& value : values) {
    value *= scale;
    const HalfFitness fitness(value);
    at_risk += fitness.at_risk, safe += fitness.safe;
    beyond |= fitness.beyond;
  }
  if (beyond || is_unfit(at_risk, safe)) scales->unfit = 1;  // whoever says so
}

}  // namespace convx
