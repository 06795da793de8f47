#pragma once

#include <cstdint>

#include "core/plan.h"

// Tensors by their addresses, 0 for none.
inline convx::Buffers buffers_at(uintptr_t x, uintptr_t w, uintptr_t y, uintptr_t bias) {
  const auto pointer = [](uintptr_t address) { return reinterpret_cast<void*>(address); };
  return {pointer(x), pointer(w), pointer(y), pointer(bias)};
}
