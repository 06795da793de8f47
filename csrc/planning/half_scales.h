// The scales of scaled fp16 (kHalfTf32, kHalfIeee; see half_scales.cuh). measure_halves.cuh writes
// them to the workspace, and all later kernels of the call read them:
//   HalfScales, then one float per filter of all groups
#pragma once

#include <cstdint>

namespace convx {

struct HalfScales {
  int unfit;       // not 0: the values are unsuitable, and the exact kernels run instead
  float source;    // the power of 2 that source values are multiplied by
  int one_signed;  // not 0: more than 7/8 of the sampled source values have the same sign
  int careful;     // not 0: the same holds for some filter too; needs short accumulation chains

  static constexpr int64_t bytes(int64_t filters) {
    return (static_cast<int64_t>(sizeof(HalfScales)) + 4 * filters + 255) / 256 * 256;
  }
};

// Two fp16 components have 23 significant bits, one fewer than float32. Sums with fewer terms than
// this would show it; in longer ones the bit is lost among rounding errors.
inline constexpr int kMinHalfIeeeTerms = 32;

// Overhead of measuring and of the kernels that return early; estimated, not measured.
inline constexpr double kHalfMicroseconds = 9;

}  // namespace convx
