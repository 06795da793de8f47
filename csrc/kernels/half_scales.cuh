// Scaled fp16: float32 values multiplied by powers of 2 and stored as float16 components.
//
// float16 has TF32's 11 significant bits, and two components have 23 of float32's 24. Its normal
// numbers span only 2^30, and below them precision is lost. So each filter is scaled by its largest
// value, and the source by the largest of a sample, with room above for values that the sample
// missed. Values below the normal range are at risk: they keep fewer bits. Among larger values that
// loss disappears in the larger values' rounding errors, as it would in float32. The tensors are
// unfit if values at risk are not among larger ones, or if a value is too large, infinite or NaN.
// docs/engines/cuda_lines.md describes the kernels around this.
#pragma once

#include <cstdint>

#include "planning/tensor_math.h"

namespace convx {

// The binary exponent of the largest value after scaling. A filter has nothing larger; the source
// may have values up to 2^7 times larger that the sample missed.
inline constexpr int kFilterExponent = 14;
inline constexpr int kSourceExponent = 8;

// The scales of all filters; negative if more than 7/8 of the filter's values have the same sign.
__device__ __forceinline__ float* filter_scales(HalfScales* scales) {
  return reinterpret_cast<float*>(scales + 1);
}
__device__ __forceinline__ const float* filter_scales(const HalfScales* scales) {
  return reinterpret_cast<const float*>(scales + 1);
}

// The power of 2 that scales the value with these bits (without sign) to the given exponent.
__device__ __forceinline__ float find_scale(uint32_t largest, int exponent) {
  if (largest == 0) return 1;
  const int biased = 2 * 127 + exponent - static_cast<int>(largest >> 23);
  return __uint_as_float(static_cast<uint32_t>(min(biased, 253)) << 23);
}

// Undoes the scales of an accumulator: 1 / (source * filter) as two factors, because the product
// may exceed float32's range.
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

// Classifies a scaled value.
struct HalfFitness {
  static constexpr uint32_t kSmallest = 0x38800000;  // 2^-14
  static constexpr uint32_t kTooLarge = 0x477ff000;  // 65520 is rounded to infinity
  bool at_risk, safe, beyond;

  __device__ __forceinline__ explicit HalfFitness(float scaled) {
    const uint32_t bits = __float_as_uint(scaled) & 0x7fffffffu;
    at_risk = bits - 1 < kSmallest - 1;  // zero is not
    safe = bits >= kSmallest;
    beyond = bits >= kTooLarge;
  }
};

// Whether the values at risk outnumber the safe ones. A single one is tolerated.
__device__ __forceinline__ bool is_unfit(int at_risk, int safe) { return at_risk >= safe + 2; }

// Checks kCount values of each lane, and sets scales->unfit. A lane's values are kSets sets of
// different channels; the i-th values of all sets of the lanes in peers are judged together. In the
// common case nothing is at risk, and the first vote ends the check.
template <int kSets = 1, int kCount>
__device__ __forceinline__ void check_fitness(HalfScales* scales, const float (&scaled)[kCount],
                                              uint32_t peers) {
  constexpr int kChannels = kCount / kSets;
  // Three instructions a value. Doubling drops the sign; zero, which is not at risk, wraps around.
  uint32_t smallest = 0xffffffffu, largest = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const uint32_t doubled = 2 * __float_as_uint(scaled[i]);
    smallest = min(smallest, doubled - 1);
    largest = max(largest, doubled);
  }
  const bool doubtful =
      smallest < 2 * HalfFitness::kSmallest - 1 || largest >= 2 * HalfFitness::kTooLarge;
  if (!__any_sync(0xffffffff, doubtful)) return;
#pragma unroll 1
  for (int i = 0; i < kChannels; ++i) {
    int at_risk = 0, safe = 0;
    bool beyond = false;
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      float value = 0;  // scaled[set * kChannels + i], which stays in registers
#pragma unroll
      for (int j = 0; j < kChannels; ++j) value = i == j ? scaled[set * kChannels + j] : value;
      const HalfFitness fitness(value);
      at_risk += __popc(__ballot_sync(0xffffffff, fitness.at_risk) & peers);
      safe += __popc(__ballot_sync(0xffffffff, fitness.safe) & peers);
      beyond |= fitness.beyond;
    }
    if (beyond || is_unfit(at_risk, safe)) scales->unfit = 1;  // all writers agree
  }
}

// Scales neighbouring values of a filter (counted over all groups), and sets scales->unfit and
// scales->careful where necessary.
template <int kCount>
__device__ __forceinline__ void scale_filter(HalfScales* scales, int filter,
                                             float (&values)[kCount]) {
  const float signed_scale = filter_scales(scales)[filter];
  const float scale = fabsf(signed_scale);
  if (signed_scale < 0 && scales->one_signed != 0) scales->careful = 1;  // all writers agree
  int at_risk = 0, safe = 0;
  bool beyond = false;
#pragma unroll
  for (float& value : values) {
    value *= scale;
    const HalfFitness fitness(value);
    at_risk += fitness.at_risk, safe += fitness.safe;
    beyond |= fitness.beyond;
  }
  if (beyond || is_unfit(at_risk, safe)) scales->unfit = 1;  // all writers agree
}

// Kernels that return early, depending on a device-side flag that an earlier kernel has written,
// such as HalfScales::unfit. The host never waits for the flag.
//
// True if the kernel must return at once: p.run_flag is set, and (*p.run_flag == 0) differs from
// p.run_if_zero. Kernels whose parameters have no run_flag always run.
template <typename Params>
__device__ __forceinline__ bool must_return(const Params& p) {
  if constexpr (requires { p.run_flag; }) {
    return p.run_flag != nullptr && (*p.run_flag == 0) != (p.run_if_zero != 0);
  } else {
    return false;
  }
}

}  // namespace convx
