// In place of csrc/device, on the host.
#pragma once

#include "emulated_cuda/warps.h"

namespace convx {

inline uint32_t round_to_tf32(float value) { return float_to_bits(value); }  // not used here

inline uint32_t pack_bfloat16(float first, float second) {
  return BFloat16::from_float(first).bits | static_cast<uint32_t>(BFloat16::from_float(second).bits)
                                                << 16;
}
inline uint32_t pack_float16(float first, float second) {
  return Half::from_float(first).bits | static_cast<uint32_t>(Half::from_float(second).bits) << 16;
}

inline constexpr float kSplitScale = 0x1p24f;
inline constexpr float kSplitUnscale = 0x1p-48f;

struct SplitPair {
  uint32_t part[3];

  SplitPair(float first, float second) {
    first *= kSplitScale;
    second *= kSplitScale;
    for (uint32_t& word : part) {
      word = pack_bfloat16(first, second);
      first -= bits_to_float(word << 16);
      second -= bits_to_float(word & 0xffff0000u);
    }
  }
};

}  // namespace convx
