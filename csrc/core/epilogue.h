// The epilogue of a forward pass: what becomes of an accumulator before it is stored.
//
//   y = activation(accumulator + bias[k] + residual)
//
// It is computed in the accumulation type and rounded once. The residual has y's extents and
// strides.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>

namespace convx {

enum class Activation : uint8_t {
  kNone,
  kRelu,
  kRelu6,
  kLeakyRelu,
  kSilu,
  kGelu,
  kGeluTanh,
  kSigmoid,
  kTanh,
  kHardswish,
  kHardsigmoid,
  kMish,
};

inline constexpr std::array kActivations{
    Activation::kNone, Activation::kRelu,      Activation::kRelu6,       Activation::kLeakyRelu,
    Activation::kSilu, Activation::kGelu,      Activation::kGeluTanh,    Activation::kSigmoid,
    Activation::kTanh, Activation::kHardswish, Activation::kHardsigmoid, Activation::kMish};

const char* name_of(Activation activation);

struct Epilogue {
  bool has_bias = false;
  bool has_residual = false;
  Activation activation = Activation::kNone;
  double slope = 0;  // kLeakyRelu multiplies negative values by it; 0 for all others

  // Whether there is more than the bias, which every engine adds.
  bool is_fused() const { return has_residual || activation != Activation::kNone; }

  bool operator==(const Epilogue&) const = default;
};

// What kernels do themselves behind the bias: y is at least 0, which is a ReLU, or anything.
// Residuals and other activations are a pass of their own (kernels/separate_pass.h).
inline constexpr float kUnbounded = -std::numeric_limits<float>::infinity();

// The least that y may be, if the epilogue is nothing else.
inline std::optional<float> find_lowest(const Epilogue& epilogue) {
  if (epilogue.has_residual) return {};
  if (epilogue.activation == Activation::kNone) return kUnbounded;
  if (epilogue.activation == Activation::kRelu) return 0.f;
  return {};
}

}  // namespace convx
