// Conversion between storage types and the types that they accumulate in (accumulate_t), on the
// device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/problem.h"
#include "core/scalar_types.h"

namespace convx {

__device__ inline float to_accumulate(float value) { return value; }
__device__ inline double to_accumulate(double value) { return value; }
__device__ inline float to_accumulate(__half value) { return __half2float(value); }
__device__ inline float to_accumulate(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ T round_to(double value);
template <>
__device__ inline double round_to<double>(double value) {
  return value;
}
template <typename T>
__device__ T round_to(float value);
template <>
__device__ inline float round_to<float>(float value) {
  return value;
}
template <>
__device__ inline __half round_to<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 round_to<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// Calls visit with a value of the device type of dtype.
template <typename Visit>
void visit_device_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kFloat32:
      return visit(float{});
    case DType::kFloat64:
      return visit(double{});
    case DType::kFloat16:
      return visit(__half{});
    case DType::kBFloat16:
      return visit(__nv_bfloat16{});
  }
}

}  // namespace convx
