// The swizzle that wgmma and TMA use for tiles [position][lane_bytes] in shared memory.
#pragma once

#include <cstdint>

namespace convx {

// Permutes 16-byte units within 1024 bytes at most: XOR of the unit's index with the address bits
// from 128 on. lane_bytes is 32, 64 or 128.
__device__ __forceinline__ uint32_t swizzle(uint32_t offset, uint32_t lane_bytes) {
  return offset ^ (((offset >> 7) & (lane_bytes / 16 - 1)) << 4);
}

}  // namespace convx
