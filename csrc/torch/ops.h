// The boxed kernels of the operators. Both libraries register them, each for its device.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "torch/conv_call.h"

namespace convx {

// Like F.conv2d, the public operators also accept a single image without a batch axis, (C, H, W).

inline Tensor conv2d(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                     const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                     const std::vector<int64_t>& dilation, int64_t groups,
                     const std::string& precision, const std::string& algorithm) {
  const ConvArguments arguments =
      parse_arguments(stride, padding, dilation, groups, precision, algorithm);
  if (input.dim() != 3) return run_forward(input, weight, bias, arguments);
  const Tensor batch = torch::stable::unsqueeze(input, 0);
  return torch::stable::squeeze(run_forward(batch, weight, bias, arguments), 0);
}

inline Tensor conv2d_act(const Tensor& input, const Tensor& weight,
                         const std::optional<Tensor>& bias, const std::vector<int64_t>& stride,
                         const std::vector<int64_t>& padding, const std::vector<int64_t>& dilation,
                         int64_t groups, const std::optional<Tensor>& residual,
                         const std::string& activation, double negative_slope,
                         const std::string& precision, const std::string& algorithm) {
  const ConvArguments arguments =
      parse_arguments(stride, padding, dilation, groups, precision, algorithm);
  const FusionArguments fusion{residual, activation, negative_slope};
  if (input.dim() != 3) return run_forward(input, weight, bias, arguments, &fusion);
  const Tensor batch = torch::stable::unsqueeze(input, 0);
  std::optional<Tensor> batch_residual;
  if (residual) batch_residual = torch::stable::unsqueeze(*residual, 0);
  const FusionArguments batch_fusion{batch_residual, activation, negative_slope};
  return torch::stable::squeeze(run_forward(batch, weight, bias, arguments, &batch_fusion), 0);
}

inline std::tuple<Tensor, Tensor, Tensor> conv2d_backward(
    const Tensor& grad_output, const Tensor& input, const Tensor& weight,
    const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
    const std::vector<int64_t>& dilation, int64_t groups, const std::vector<bool>& output_mask,
    const std::string& precision, const std::string& algorithm) {
  const ConvArguments arguments =
      parse_arguments(stride, padding, dilation, groups, precision, algorithm);
  const GradMask mask{output_mask.at(0), output_mask.at(1), output_mask.at(2)};
  if (input.dim() != 3 || grad_output.dim() != 3) {
    return run_backward(grad_output, input, weight, mask, arguments);
  }
  auto grads = run_backward(torch::stable::unsqueeze(grad_output, 0),
                            torch::stable::unsqueeze(input, 0), weight, mask, arguments);
  Tensor& grad_input = std::get<0>(grads);
  if (grad_input.defined()) grad_input = torch::stable::squeeze(grad_input, 0);
  return grads;
}

// The private operators take scalars, because boxing a list costs a heap allocation per call.

inline Tensor conv2d_scalar(const Tensor& input, const Tensor& weight,
                            const std::optional<Tensor>& bias, int64_t stride_h, int64_t stride_w,
                            int64_t pad_top, int64_t pad_bottom, int64_t pad_left,
                            int64_t pad_right, int64_t dilation_h, int64_t dilation_w,
                            int64_t groups, const std::string& precision,
                            const std::string& algorithm) {
  return run_forward(input, weight, bias,
                     {{stride_h, stride_w},
                      {pad_top, pad_bottom, pad_left, pad_right},
                      {dilation_h, dilation_w},
                      groups,
                      precision,
                      algorithm});
}

inline Tensor conv2d_fused(const Tensor& input, const Tensor& weight,
                           const std::optional<Tensor>& bias, const std::optional<Tensor>& residual,
                           const std::string& activation, double negative_slope, int64_t stride_h,
                           int64_t stride_w, int64_t pad_top, int64_t pad_bottom, int64_t pad_left,
                           int64_t pad_right, int64_t dilation_h, int64_t dilation_w,
                           int64_t groups, const std::string& precision,
                           const std::string& algorithm) {
  const FusionArguments fusion{residual, activation, negative_slope};
  return run_forward(input, weight, bias,
                     {{stride_h, stride_w},
                      {pad_top, pad_bottom, pad_left, pad_right},
                      {dilation_h, dilation_w},
                      groups,
                      precision,
                      algorithm},
                     &fusion);
}

inline Tensor conv2d_input_grad(const Tensor& grad_output, const Tensor& weight, int64_t height,
                                int64_t width, bool channels_last, int64_t stride_h,
                                int64_t stride_w, int64_t pad_top, int64_t pad_bottom,
                                int64_t pad_left, int64_t pad_right, int64_t dilation_h,
                                int64_t dilation_w, int64_t groups, const std::string& precision,
                                const std::string& algorithm) {
  return run_input_grad(grad_output, weight, height, width, channels_last,
                        {{stride_h, stride_w},
                         {pad_top, pad_bottom, pad_left, pad_right},
                         {dilation_h, dilation_w},
                         groups,
                         precision,
                         algorithm});
}

inline Tensor conv2d_weight_grad(const Tensor& grad_output, const Tensor& input, int64_t kernel_h,
                                 int64_t kernel_w, bool channels_last, int64_t stride_h,
                                 int64_t stride_w, int64_t pad_top, int64_t pad_bottom,
                                 int64_t pad_left, int64_t pad_right, int64_t dilation_h,
                                 int64_t dilation_w, int64_t groups, const std::string& precision,
                                 const std::string& algorithm) {
  return run_weight_grad(grad_output, input, kernel_h, kernel_w, channels_last,
                         {{stride_h, stride_w},
                          {pad_top, pad_bottom, pad_left, pad_right},
                          {dilation_h, dilation_w},
                          groups,
                          precision,
                          algorithm});
}

inline Tensor conv2d_bias_grad(const Tensor& grad_output) { return run_bias_grad(grad_output); }

// The three gradients above in one call, for eager backward passes: each call through the
// dispatcher costs the host microseconds.
inline std::tuple<Tensor, Tensor, Tensor> conv2d_gradients(
    const Tensor& grad_output, const Tensor& input, const Tensor& weight, bool needs_input,
    bool needs_weight, bool needs_bias, int64_t stride_h, int64_t stride_w, int64_t pad_top,
    int64_t pad_bottom, int64_t pad_left, int64_t pad_right, int64_t dilation_h, int64_t dilation_w,
    int64_t groups, const std::string& precision, const std::string& algorithm) {
  return run_backward(grad_output, input, weight, {needs_input, needs_weight, needs_bias},
                      {{stride_h, stride_w},
                       {pad_top, pad_bottom, pad_left, pad_right},
                       {dilation_h, dilation_w},
                       groups,
                       precision,
                       algorithm});
}

// Implements Python's explain() and tune(). No tensor is involved that could select a library, so
// each library has its own operators. kRun is run_explain or run_prefer.
template <auto kRun>
auto run_about_problem(const std::string& direction, const std::string& dtype,
                       const std::vector<int64_t>& input_size,
                       const std::vector<int64_t>& input_stride,
                       const std::vector<int64_t>& weight_size,
                       const std::vector<int64_t>& weight_stride,
                       const std::vector<int64_t>& output_stride, bool has_bias,
                       const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                       const std::vector<int64_t>& dilation, int64_t groups,
                       const std::string& precision, const std::string& algorithm, int64_t device,
                       bool has_residual, const std::string& activation) {
  return kRun({direction, dtype, input_size, input_stride, weight_size, weight_stride, has_bias,
               output_stride, has_residual, activation},
              parse_arguments(stride, padding, dilation, groups, precision, algorithm),
              static_cast<int>(device));
}

#define CONVX_PROBLEM_ARGUMENTS                                                            \
  "(str direction, str dtype, int[] input_size, int[] input_stride, int[] weight_size, "   \
  "int[] weight_stride, int[] output_stride, bool has_bias, int[] stride, int[] padding, " \
  "int[] dilation, int groups, str precision, str algorithm, int device, "                 \
  "bool has_residual=False, str activation=\"none\")"

inline void implement_ops(torch::stable::detail::StableLibrary& m) {
  m.impl("conv2d", TORCH_BOX(&conv2d));
  m.impl("conv2d_act", TORCH_BOX(&conv2d_act));
  m.impl("conv2d_backward", TORCH_BOX(&conv2d_backward));
  m.impl("_conv2d", TORCH_BOX(&conv2d_scalar));
  m.impl("_conv2d_fused", TORCH_BOX(&conv2d_fused));
  m.impl("_conv2d_input_grad", TORCH_BOX(&conv2d_input_grad));
  m.impl("_conv2d_weight_grad", TORCH_BOX(&conv2d_weight_grad));
  m.impl("_conv2d_bias_grad", TORCH_BOX(&conv2d_bias_grad));
  m.impl("_conv2d_gradients", TORCH_BOX(&conv2d_gradients));
}

}  // namespace convx
