// In place of csrc/device, on the host.
#pragma once

#include "emulated_cuda/emulator.h"

namespace convx {

inline void store_global_16_bytes(void* to, const uint4& words) {
  *static_cast<uint4*>(to) = words;
}

}  // namespace convx
