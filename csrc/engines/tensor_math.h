// What the tensor cores multiply, for the engines that use them.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace convx {

enum class TensorMath : uint8_t {
  kTf32,      // float32 rounded to TF32
  kIeee,      // float32 as a sum of three bfloat16, six products
  kBFloat16,  // as stored
  kFloat16,
  // Where a tensor's values lie near enough to each other (engines/half_scales.cuh):
  kHalfTf32,  // float32 rounded to TF32's 11 bits, scaled, as float16, at twice TF32's rate
  kHalfIeee,  // float32, scaled, as a sum of two float16, three products
};

inline TensorMath tensor_math(const ConvProblem& problem) {
  if (problem.dtype == DType::kBFloat16) return TensorMath::kBFloat16;
  if (problem.dtype == DType::kFloat16) return TensorMath::kFloat16;
  return problem.precision == Precision::kTf32 ? TensorMath::kTf32 : TensorMath::kIeee;
}

// As scaled float16.
constexpr bool is_half(TensorMath math) {
  return math == TensorMath::kHalfTf32 || math == TensorMath::kHalfIeee;
}

// Of one value as it is multiplied.
constexpr int operand_bytes(TensorMath math) { return math == TensorMath::kTf32 ? 4 : 2; }

// Parts that a value is split into.
constexpr int count_planes(TensorMath math) {
  return math == TensorMath::kIeee ? 3 : math == TensorMath::kHalfIeee ? 2 : 1;
}

// Chunks of the reduction: rows of the grid that packs filters.
inline constexpr int64_t kMaxTensorChunks = 65535;

}  // namespace convx
