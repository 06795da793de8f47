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
};

inline TensorMath tensor_math(const ConvProblem& problem) {
  if (problem.dtype == DType::kBFloat16) return TensorMath::kBFloat16;
  if (problem.dtype == DType::kFloat16) return TensorMath::kFloat16;
  return problem.precision == Precision::kTf32 ? TensorMath::kTf32 : TensorMath::kIeee;
}

// Of one value as it is multiplied.
constexpr int operand_bytes(TensorMath math) { return math == TensorMath::kTf32 ? 4 : 2; }

// Parts that a value is split into.
constexpr int count_planes(TensorMath math) { return math == TensorMath::kIeee ? 3 : 1; }

// Chunks of the reduction: rows of the grid that packs filters.
inline constexpr int64_t kMaxTensorChunks = 65535;

}  // namespace convx
