// float32 values in the formats that tensor cores multiply (sm_80).
#pragma once

#include <cstdint>

#include "device/tensor_rounding.cuh"

namespace convx {

// Split float32 values are this much larger than the values: then no part of the smallest of them
// underflows. Values and sums too large for it become infinite or NaN, and are formed again in
// float32 when they are stored.
inline constexpr float kSplitScale = 0x1p24f;
inline constexpr float kSplitUnscale = 0x1p-48f;  // of a product of two

// kSplitScale * value = part 0 + part 1 + part 2 exactly, each a bfloat16: 24 bits are three
// times 8.
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

// value = part 0 + part 1 / kHalfLowScale, each a float16, but for 2^-22 of it. The second part is
// made as large as the first, so that both have as much room above float16's smallest numbers.
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
