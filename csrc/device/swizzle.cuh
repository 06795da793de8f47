// How values lie in a tile of shared memory that the tensor cores and the copy engine know:
// [position][lane_bytes of channels], swizzled.
#pragma once

#include <cstdint>

namespace convx {

// 16-byte pieces of a tile are exchanged within 1024 bytes, by the address bits above 128.
__device__ __forceinline__ uint32_t swizzle(uint32_t offset, uint32_t lane_bytes) {
  return offset ^ (((offset >> 7) & (lane_bytes / 16 - 1)) << 4);
}

}  // namespace convx
