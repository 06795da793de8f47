// Splits float32 values into components for tensor cores (sm_80).
#pragma once

#include <cstdint>

#include "device/tensor_rounding.cuh"

namespace convx {

// float32 values are multiplied by this before they are split into bfloat16 components, so that no
// component of the smallest values underflows. Values and sums that become infinite or NaN because
// of it are recomputed in float32 when they are stored.
inline constexpr float kSplitScale = 0x1p24f;
inline constexpr float kSplitUnscale = 0x1p-48f;  // undoes the scale of a product

// kSplitScale * value = part[0] + part[1] + part[2] exactly; the three bfloat16 components have 3 x
// 8 significant bits.
struct SplitPair {
  uint32_t part[3];

  __device__ __forceinline__ SplitPair(float first, float second) {
    first *= kSplitScale;
    second *= kSplitScale;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      part[i] = pack_bfloat16(first, second);
      first -= __uint_as_float(part[i] << 16);
      second -= __uint_as_float(part[i] & 0xffff0000u);
    }
  }
};

// value = part[0] + part[1] / kHalfLowScale, with a relative error of 2^-22; both are float16. The
// low component is scaled up to the size of the high one, so that it is as far from float16's
// smallest numbers.
inline constexpr float kHalfLowScale = 0x1p11f;

struct HalfPair {
  uint32_t part[2];

  __device__ __forceinline__ HalfPair(float first, float second) {
    part[0] = pack_float16(first, second);
    float first_high, second_high;
    unpack_float16(part[0], first_high, second_high);
    part[1] =
        pack_float16((first - first_high) * kHalfLowScale, (second - second_high) * kHalfLowScale);
  }
};

}  // namespace convx
