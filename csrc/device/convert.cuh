// Conversion between storage types and the types that they accumulate in (accumulate_t), on the
// device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

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

// The larger of two values, or NaN if the first one is; fmaxf would return the other. One
// instruction for float32.
template <typename Acc>
__device__ __forceinline__ Acc max_or_nan(Acc value, Acc other) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (sizeof(Acc) == 4) {
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(value), "f"(other));
    return value;
  }
#endif
  return value < other ? other : value;
}

// Element `index` of a tensor whose dtype is known at run time. Kernels that convert few values use
// these, so that they are compiled once for all dtypes that accumulate in Acc.
template <typename Acc>
__device__ inline Acc load_as(DType dtype, const void* tensor, int64_t index) {
  if constexpr (sizeof(Acc) == 8) {
    return static_cast<const double*>(tensor)[index];
  } else if (dtype == DType::kFloat32) {
    return static_cast<const float*>(tensor)[index];
  } else if (dtype == DType::kFloat16) {
    return to_accumulate(static_cast<const __half*>(tensor)[index]);
  } else {
    return to_accumulate(static_cast<const __nv_bfloat16*>(tensor)[index]);
  }
}
template <typename Acc>
__device__ inline void store_as(DType dtype, void* tensor, int64_t index, Acc value) {
  if constexpr (sizeof(Acc) == 8) {
    static_cast<double*>(tensor)[index] = value;
  } else if (dtype == DType::kFloat32) {
    static_cast<float*>(tensor)[index] = value;
  } else if (dtype == DType::kFloat16) {
    static_cast<__half*>(tensor)[index] = round_to<__half>(value);
  } else {
    static_cast<__nv_bfloat16*>(tensor)[index] = round_to<__nv_bfloat16>(value);
  }
}

// The type whose kernels move values of T unchanged: those of float16 move bfloat16 as well.
template <typename T>
using MovedAs = std::conditional_t<sizeof(T) == 2, __half, T>;

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

// Calls visit with a value of the device type of dtype. For problems whose engine refuses float64.
template <typename Visit>
void visit_float_type(DType dtype, const Visit& visit) {
  visit_device_type(dtype, [&](auto type) {
    if constexpr (sizeof(type) <= 4) visit(type);
  });
}

}  // namespace convx
