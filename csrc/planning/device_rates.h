// Rates of other GPUs relative to an H200. The cost models are fitted to an H200 and scaled by
// these. They come from data sheets; only the H200 was measured.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/device_caps.h"

namespace convx {

// The fraction of a layer's tensors that is still in the H200's L2 when they are read again: 1 up
// to 37 MB, 0 from twice as much.
inline double find_near_share(double bytes) {
  constexpr double kNearBytes = 37e6;
  return std::clamp(2 - bytes / kNearBytes, 0.0, 1.0);
}

// The relative cost of a byte in rows that are, or are not, whole 32-byte sectors.
inline double find_sector_share(double line_bytes) {
  constexpr double kSectorBytes = 32, kPartSectors = 1.33;
  return std::fmod(line_bytes, kSectorBytes) == 0 ? 1 : kPartSectors;
}

// Relative to an H200. clock, tensor and multiply are rates of one multiprocessor, memory is the
// bandwidth of the whole device.
struct DeviceRates {
  double clock = 1;
  double tensor = 1;    // tensor-core MMAs
  double multiply = 1;  // float32 multiply-adds
  double memory = 1;
};

inline DeviceRates rates_of(const DeviceCaps& caps) {
  switch (10 * caps.compute_major + caps.compute_minor) {
    case 80:  // A100: 1024 16-bit multiply-adds per cycle at 1.41 GHz, half the float32 units
      return {0.8, 0.40, 0.40, 0.42};
    case 89:  // between a 4090 and an L40S, whose float32 accumulation is twice as fast
      return {1.4, 0.25, 1.4, 0.20};
    case 120:
    case 121:  // 5090: 256 16-bit multiply-adds per cycle
      return {1.4, 0.17, 1.4, 0.37};
    case 100:
    case 103:  // B200, without its own tensor instructions, which would be faster
      return {1.05, 1, 1.05, 1.6};
    default:
      break;
  }
  if (caps.compute_major == 8) return {1, 0.12, 1, 0.20};       // 3090: 256 per cycle
  if (caps.compute_major < 8) return {0.85, 0.20, 0.43, 0.15};  // T4, V100
  return {};
}

}  // namespace convx
