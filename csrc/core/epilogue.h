// The epilogue of a forward pass: what becomes of an accumulator before it is stored.
//
//   y = activation(accumulator + bias[k] + residual)
//
// It is computed in the accumulation type and rounded once. The residual has y's extents and
// strides.
#pragma once

#include <array>
#include <cstdint>

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

// Whether an activation is a few instructions long, so that a kernel may have it in its inner loop.
constexpr bool is_short(Activation activation) {
  using enum Activation;
  return activation != kGelu && activation != kGeluTanh && activation != kTanh &&
         activation != kMish;
}

struct Epilogue {
  bool has_bias = false;
  bool has_residual = false;
  Activation activation = Activation::kNone;
  double slope = 0;  // kLeakyRelu multiplies negative values by it; 0 for all others

  // Whether there is more than the bias, which every engine adds.
  bool is_fused() const { return has_residual || activation != Activation::kNone; }

  bool operator==(const Epilogue&) const = default;
};

// The same for kernels, which add the bias on their own.
struct FusionParams {
  const void* residual = nullptr;  // what is added to the target at the same offset; may be null
  Activation activation = Activation::kNone;
  double slope = 0;

#ifdef __CUDACC__
  __device__ bool is_on() const { return residual != nullptr || activation != Activation::kNone; }
#endif
};

}  // namespace convx
