// The part of an epilogue behind the bias that kernels do themselves: they bound accumulators in
// registers, before they round them (core/epilogue.h).
//
// Without an activation the bounds are infinite, and values are bounded all the same: two
// instructions cost less than a branch, which keeps the compiler from moving stores between sums.
#pragma once

#include "core/epilogue.h"
#include "device/convert.cuh"

namespace convx {

// NaN stays NaN.
template <typename Acc>
__device__ __forceinline__ Acc bound(const Clamp& clamp, Acc value) {
  return min_or_nan(max_or_nan(value, Acc(clamp.lowest)), Acc(clamp.highest));
}

template <typename Acc, int kCount>
__device__ __forceinline__ void bound_all(const Clamp& clamp, Acc (&values)[kCount]) {
#pragma unroll
  for (Acc& value : values) value = bound(clamp, value);
}

}  // namespace convx
