// The part of an epilogue behind the bias that kernels do themselves: they bound accumulators in
// registers, before they round them (core/epilogue.h).
#pragma once

#include "core/epilogue.h"

namespace convx {

// NaN stays.
template <typename Acc>
__device__ __forceinline__ Acc bound(const Clamp& clamp, Acc value) {
  const Acc lowest = clamp.lowest, highest = clamp.highest;
  value = value < lowest ? lowest : value;
  return value > highest ? highest : value;
}

// The branch is the same for all threads of a launch.
template <typename Acc, int kCount>
__device__ __forceinline__ void bound_all(const Clamp& clamp, Acc (&values)[kCount]) {
  if (!clamp.is_on) return;
#pragma unroll
  for (Acc& value : values) value = bound(clamp, value);
}

}  // namespace convx
