// The operand formats of the tensor-core engines, and the scales of scaled fp16.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace convx {

enum class TensorMath : uint8_t {
  kTf32,      // float32 rounded to TF32
  kIeee,      // float32 as three bfloat16 components, six products
  kBFloat16,  // as stored
  kFloat16,
  // Scaled fp16, if the values are suitable (kernels/half_scales.cuh):
  kHalfTf32,  // one float16 component, which has TF32's 11 bits, at twice TF32's rate
  kHalfIeee,  // two float16 components, three products
};

inline TensorMath tensor_math(const ConvProblem& problem) {
  if (problem.dtype == DType::kBFloat16) return TensorMath::kBFloat16;
  if (problem.dtype == DType::kFloat16) return TensorMath::kFloat16;
  return problem.precision == Precision::kTf32 ? TensorMath::kTf32 : TensorMath::kIeee;
}

inline const char* name_of(TensorMath math) {
  constexpr const char* kNames[] = {"TF32",    "3 x bfloat16", "bfloat16",
                                    "float16", "scaled fp16",  "2 x scaled fp16"};
  return kNames[static_cast<int>(math)];
}

// Whether operands are scaled fp16.
constexpr bool is_half(TensorMath math) {
  return math == TensorMath::kHalfTf32 || math == TensorMath::kHalfIeee;
}

// Bytes of one component of an operand.
constexpr int operand_bytes(TensorMath math) { return math == TensorMath::kTf32 ? 4 : 2; }

// Components that a value is split into.
constexpr int count_planes(TensorMath math) {
  return math == TensorMath::kIeee ? 3 : math == TensorMath::kHalfIeee ? 2 : 1;
}

// Calls visit.operator()<kMath>() with a run-time value as the template argument.
template <typename Visit>
decltype(auto) visit_math(TensorMath math, const Visit& visit) {
  switch (math) {
    case TensorMath::kTf32:
      return visit.template operator()<TensorMath::kTf32>();
    case TensorMath::kIeee:
      return visit.template operator()<TensorMath::kIeee>();
    case TensorMath::kBFloat16:
      return visit.template operator()<TensorMath::kBFloat16>();
    case TensorMath::kFloat16:
      return visit.template operator()<TensorMath::kFloat16>();
    case TensorMath::kHalfTf32:
      return visit.template operator()<TensorMath::kHalfTf32>();
    default:
      return visit.template operator()<TensorMath::kHalfIeee>();
  }
}

// The grid that packs filters has a row of blocks per chunk of the reduction: CUDA's limit.
inline constexpr int64_t kMaxTensorChunks = 65535;

// The scales of scaled fp16 (kHalfTf32, kHalfIeee; see half_scales.cuh). measure_halves.cuh writes
// them to the workspace, and all later kernels of the call read them:
//   HalfScales, then one float per filter of all groups
struct HalfScales {
  int unfit;       // not 0: the values are unsuitable, and the exact kernels run instead
  float source;    // the power of 2 that source values are multiplied by
  int one_signed;  // not 0: more than 7/8 of the sampled source values have the same sign
  int careful;     // not 0: the same holds for some filter too; needs short accumulation chains

  static constexpr int64_t bytes(int64_t filters) {
    return (static_cast<int64_t>(sizeof(HalfScales)) + 4 * filters + 255) / 256 * 256;
  }
};

// Two fp16 components have 23 significant bits, one fewer than float32. Sums with fewer terms than
// this would show it; in longer ones the bit is lost among rounding errors.
inline constexpr int kMinHalfIeeeTerms = 32;

// Overhead of measuring and of the kernels that return early; estimated, not measured.
inline constexpr double kHalfMicroseconds = 9;

}  // namespace convx
