#pragma once

#include <cstdint>

#include "core/plan.h"

// The residual of all problems that have one.
inline uintptr_t residual_address = 0;

// Tensors by their addresses, 0 for none.
inline convx::Buffers buffers_at(uintptr_t x, uintptr_t w, uintptr_t y, uintptr_t bias) {
  const auto pointer = [](uintptr_t address) { return reinterpret_cast<void*>(address); };
  return {pointer(x), pointer(w), pointer(y), pointer(bias), pointer(residual_address)};
}
