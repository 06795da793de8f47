// From tensors to a planned and launched convolution. Only this code knows both sides, PyTorch's
// tensors and the engines.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/problem.h"

namespace convx {

using torch::stable::Tensor;

// The arguments of a convolution besides its tensors.
struct ConvArguments {
  Hw stride;
  Padding pad;
  Hw dilation;
  int64_t groups = 1;
  std::string_view precision;  // as the caller passed it
  std::string_view algorithm;
};

// stride and dilation take one value or (height, width). padding also takes (top, bottom, left,
// right).
ConvArguments parse_arguments(const std::vector<int64_t>& stride,
                              const std::vector<int64_t>& padding,
                              const std::vector<int64_t>& dilation, int64_t groups,
                              std::string_view precision, std::string_view algorithm);

// What follows the bias in a fused forward pass (core/epilogue.h).
struct FusionArguments {
  const std::optional<Tensor>& residual;
  std::string_view activation;  // as the caller passed it
  double slope;
};

// fusion may be null.
Tensor run_forward(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   const ConvArguments& arguments, const FusionArguments* fusion = nullptr);

// channels_last: the result is allocated in channels_last memory format.
Tensor run_input_grad(const Tensor& grad_output, const Tensor& weight, int64_t height,
                      int64_t width, bool channels_last, const ConvArguments& arguments);

Tensor run_weight_grad(const Tensor& grad_output, const Tensor& input, int64_t kernel_h,
                       int64_t kernel_w, bool channels_last, const ConvArguments& arguments);

Tensor run_bias_grad(const Tensor& grad_output);

// Which gradients are requested: the input's, the weight's, the bias's.
using GradMask = std::array<bool, 3>;

// Computes the gradients that mask requests. The others are undefined, which is None in Python.
std::tuple<Tensor, Tensor, Tensor> run_backward(const Tensor& grad_output, const Tensor& input,
                                                const Tensor& weight, const GradMask& mask,
                                                const ConvArguments& arguments);

// Returns the names of this library's engines as JSON.
std::string run_engines();

// A problem described without tensors, for explain() and tune().
struct ProblemText {
  std::string direction;  // "forward", "input_grad" or "weight_grad"
  std::string dtype;      // "float32", ...
  std::vector<int64_t> input_size, input_stride;
  std::vector<int64_t> weight_size, weight_stride;
  bool has_bias;
  std::vector<int64_t> output_stride = {};  // empty: the strides that the forward pass would choose
  bool has_residual = false;
  std::string activation = "none";
};

// Returns JSON, see describe_choice().
std::string run_explain(const ProblemText& text, const ConvArguments& arguments, int device);

// From now on, algorithm="auto" uses arguments.algorithm for this problem.
void run_prefer(const ProblemText& text, const ConvArguments& arguments, int device);

// Starts or stops recording the problems that are called with algorithm="auto". Returns the
// problems recorded so far as a JSON list (see describe()), each with its device.
std::string run_record(bool on);

// Starts or stops tuning: while on, each problem that is called with algorithm="auto" is measured
// at its first call. Returns whether tuning was on before.
bool run_autotune(bool on);

}  // namespace convx
