// Dispatch to the types that accumulate in float32.
#pragma once

#include "device/convert.cuh"

namespace convx {

// Calls visit with a value of the device type of dtype. For problems whose engine refuses float64.
template <typename Visit>
void visit_float_type(DType dtype, const Visit& visit) {
  visit_device_type(dtype, [&](auto type) {
    if constexpr (sizeof(type) <= 4) visit(type);
  });
}

}  // namespace convx
