// The part of an epilogue behind the bias: adds the residual and applies the activation
// (core/epilogue.h).
#pragma once

#include <cmath>

#include "core/epilogue.h"
#include "device/convert.cuh"

namespace convx {

#include "core/activations.inl"

// Activates values in registers. All threads of a launch take the same way through the switch.
template <typename Acc, int kCount>
__device__ __forceinline__ void activate_values(const Epilogue& epilogue, Acc (&values)[kCount]) {
  const Acc slope = static_cast<Acc>(epilogue.slope);
  visit_activation(epilogue.activation, [&]<Activation kActivation>() {
#pragma unroll
    for (Acc& v : values) v = activate<kActivation, LibraryMath>(v, slope);
  });
}

}  // namespace convx
