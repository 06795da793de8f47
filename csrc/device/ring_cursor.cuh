// A position in a ring of pipeline stages.
#pragma once

#include <cstdint>

namespace convx {

// The current stage and the parity of its barriers' phase.
struct RingCursor {
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance(int slots) {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }

  __device__ __forceinline__ void skip(int count, int slots) {
    for (slot += count; slot >= slots; slot -= slots) parity ^= 1;
  }
};

}  // namespace convx
