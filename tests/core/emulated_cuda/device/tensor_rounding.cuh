// In place of csrc's.
#pragma once

#include "emulator.h"

namespace convx {

// To nearest, ties away from zero; infinities and NaN stay what they are.
inline uint32_t round_to_tf32(float value) {
  const uint32_t bits = float_to_bits(value);
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

inline uint32_t pack_bfloat16(float first, float second) {
  return uint32_t{BFloat16::from_float(second).bits} << 16 | BFloat16::from_float(first).bits;
}
inline uint32_t pack_float16(float first, float second) {
  return uint32_t{Half::from_float(second).bits} << 16 | Half::from_float(first).bits;
}
inline void unpack_float16(uint32_t word, float& first, float& second) {
  first = Half{static_cast<uint16_t>(word)}, second = Half{static_cast<uint16_t>(word >> 16)};
}

}  // namespace convx
