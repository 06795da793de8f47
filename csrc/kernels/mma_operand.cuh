// Storage types as operands of mma.sync.
#pragma once

#include "core/problem.h"
#include "device/mma.cuh"
#include "device/tensor_rounding.cuh"

namespace convx {

template <typename T>
struct MmaOperand {
  using Type = T;
};
template <>
struct MmaOperand<float> {
  using Type = Tf32;
};

// sums += a * b (device/mma.cuh).
template <typename T>
__device__ __forceinline__ void multiply_operands(float* sums, const uint32_t (&a)[4], uint32_t b0,
                                                  uint32_t b1) {
  Mma<typename MmaOperand<T>::Type>::multiply(sums, a, b0, b1);
}

// Calls visit with a value of the device type of dtype: float (multiplied as TF32), half, bfloat16.
template <typename Visit>
void visit_mma_type(DType dtype, const Visit& visit) {
  if (dtype == DType::kFloat32) return visit(float{});
  if (dtype == DType::kFloat16) return visit(__half{});
  visit(__nv_bfloat16{});
}

// Rounds a float32 value to TF32; 16-bit values are operands as they are.
__device__ __forceinline__ float round_operand(float value) {
  return __uint_as_float(round_to_tf32(value));
}
template <typename T>
__device__ __forceinline__ T round_operand(T value) {
  return value;
}

// Rounds kCount neighbours in shared memory with one load and one store of up to 16 bytes.
template <int kCount>
__device__ __forceinline__ void round_unit(float* values) {
  struct __align__(4 * kCount) Unit {
    float of[kCount];
  };
  Unit unit = *reinterpret_cast<const Unit*>(values);
#pragma unroll
  for (float& value : unit.of) value = round_operand(value);
  *reinterpret_cast<Unit*>(values) = unit;
}

}  // namespace convx
