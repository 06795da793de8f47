// What multiplying float32 values as float16 (kHalfTf32, kHalfIeee) needs to know of them. Lies in
// the workspace, written by measure_halves.cuh and read by all kernels behind it:
//   HalfScales, then a scale of each filter, of all groups.
#pragma once

#include <cstdint>

namespace convx {

struct HalfScales {
  int unfit;       // not 0: values lie too far apart, and other kernels run instead
  float source;    // a power of 2 that source values are multiplied with
  int one_signed;  // most source values have the same sign
  int careful;     // and so have most of some filter: errors of sums add up

  static constexpr int64_t bytes(int64_t filters) {
    return (static_cast<int64_t>(sizeof(HalfScales)) + 4 * filters + 255) / 256 * 256;
  }
};

// Sums of fewer terms would show that two halves know values to 23 bits, one fewer than float32; in
// longer ones it is lost among rounding errors.
inline constexpr int kMinHalfIeeeTerms = 32;

// Measuring, and the kernels that then have nothing to do.
inline constexpr double kHalfMicroseconds = 9;  // reckoned

}  // namespace convx
