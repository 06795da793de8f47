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

// What kernels do themselves behind the bias: they bound y, which is a ReLU or ReLU6. Residuals and
// other activations are a pass of their own (kernels/separate_pass.h).
struct Clamp {
  float lowest = -std::numeric_limits<float>::infinity();
  float highest = std::numeric_limits<float>::infinity();

  constexpr bool is_on() const { return lowest > -std::numeric_limits<float>::infinity(); }
};

// The epilogue as bounds of y, where it is nothing else.
inline std::optional<Clamp> find_clamp(const Epilogue& epilogue) {
  if (epilogue.has_residual) return {};
  switch (epilogue.activation) {
    case Activation::kNone:
      return Clamp{};
    case Activation::kRelu:
      return Clamp{.lowest = 0};
    case Activation::kRelu6:
      return Clamp{0, 6};
    default:
      return {};
  }
}

}  // namespace convx
