// The part of an epilogue behind the bias: adds the residual and applies the activation
// (core/epilogue.h). Kernels call it on accumulators in registers, before they round them.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/epilogue.h"
#include "device/convert.cuh"

namespace convx {

#include "core/activations.inl"

template <typename Acc>
__device__ __forceinline__ void activate_array(Activation activation, Acc slope, Acc* values,
                                               int count) {
  visit_activation(activation, [&]<Activation kActivation>() {
#pragma unroll 2
    for (int i = 0; i < count; ++i) {
      values[i] = activate<kActivation, LibraryMath>(values[i], slope);
    }
  });
}

// Activates values in registers by one of the short activations, without a call: kernels that keep
// their operands in registers through the whole launch would need more of them around one.
template <typename Acc, int kCount>
__device__ __forceinline__ void activate_inline(const FusionParams& p, Acc (&values)[kCount]) {
  if (p.activation == Activation::kNone) return;
  const Acc slope = static_cast<Acc>(p.slope);
  visit_activation(p.activation, [&]<Activation kActivation>() {
    if constexpr (is_short(kActivation)) {
#pragma unroll
      for (Acc& v : values) v = activate<kActivation, LibraryMath>(v, slope);
    }
  });
}

// Finishes an array in local memory. It is a call with a loop, because the activations would fill
// the instruction cache, and take the compiler long, if they were inlined into every unrolled
// store. residual: of the first value, its neighbours `step` elements further each; may be null.
// Only the first `present` values have one.
template <typename T>
__device__ __noinline__ void finish_array(Activation activation, double slope, const T* residual,
                                          int64_t step, int present, accumulate_t<T>* values,
                                          int count) {
  using Acc = accumulate_t<T>;
  if (residual != nullptr) {
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      if (i < present) values[i] += to_accumulate(residual[i * step]);
    }
  }
  activate_array(activation, static_cast<Acc>(slope), values, count);
}

// The residual's address for the target's element at `at`, or null if there is no residual.
template <typename T>
__device__ __forceinline__ const T* locate_residual(const FusionParams& p, const void* target,
                                                    const T* at) {
  if (p.residual == nullptr) return nullptr;
  return static_cast<const T*>(p.residual) + (at - static_cast<const T*>(target));
}

// Finishes values in registers: a ReLU alone in place, everything else by call(array), which
// finishes a copy in local memory. The branch is the same for all threads of a launch.
template <typename Acc, int kCount, typename Call>
__device__ __forceinline__ void finish_by_call(const FusionParams& p, Acc (&values)[kCount],
                                               const Call& call) {
  if (p.residual == nullptr && p.activation == Activation::kRelu) {
#pragma unroll
    for (Acc& v : values) v = activate<Activation::kRelu, LibraryMath>(v, Acc(0));
    return;
  }
  Acc all[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) all[i] = values[i];
  call(all);
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = all[i];
}

// residual, step, present: as for finish_array.
template <typename T, int kCount>
__device__ __forceinline__ void finish_values(const FusionParams& p, const T* residual,
                                              int64_t step, int present,
                                              accumulate_t<T> (&values)[kCount]) {
  if (residual == nullptr && p.activation == Activation::kNone) return;
  finish_by_call(p, values, [&](accumulate_t<T>* all) {
    finish_array<T>(p.activation, p.slope, residual, step, present, all, kCount);
  });
}

// Finishes a value that goes to *at.
template <typename T>
__device__ __forceinline__ accumulate_t<T> finish_value(const FusionParams& p, const void* target,
                                                        const T* at, accumulate_t<T> value) {
  accumulate_t<T> values[1] = {value};
  finish_values<T>(p, locate_residual(p, target, at), 1, 1, values);
  return values[0];
}

}  // namespace convx
