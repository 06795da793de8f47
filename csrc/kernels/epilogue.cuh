// The part of an epilogue behind the bias that kernels do themselves: a ReLU of accumulators in
// registers, before they are rounded (core/epilogue.h).
//
// Without an activation y is at least -infinity, and values are compared all the same: an
// instruction costs less than a branch, which keeps the compiler from moving stores between sums.
#pragma once

#include "core/epilogue.h"
#include "device/convert.cuh"

namespace convx {

// NaN stays NaN.
template <typename Acc>
__device__ __forceinline__ Acc at_least(Acc value, float lowest) {
  return max_or_nan(value, Acc(lowest));
}

template <typename Acc, int kCount>
__device__ __forceinline__ void all_at_least(Acc (&values)[kCount], float lowest) {
#pragma unroll
  for (Acc& value : values) value = at_least(value, lowest);
}

}  // namespace convx
