// Start here: defines the operators of torch.ops.convx and registers their CPU kernels.
// Autograd, fake tensors, autocast and vmap are registered from Python (conv2d_ext).
#include "torch/ops.h"

#define CONVX_LIST_ARGUMENTS \
  "SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1"
#define CONVX_SCALAR_ARGUMENTS                                                                 \
  "SymInt stride_h, SymInt stride_w, SymInt pad_top, SymInt pad_bottom, SymInt pad_left, "     \
  "SymInt pad_right, SymInt dilation_h, SymInt dilation_w, SymInt groups, str precision, str " \
  "algorithm"

STABLE_TORCH_LIBRARY(convx, m) {
  m.def("conv2d(Tensor input, Tensor weight, Tensor? bias=None, " CONVX_LIST_ARGUMENTS
        ", *, str precision=\"ieee\", str algorithm=\"auto\") -> Tensor");
  // PyTorch accepts a single int for int[2] but not for SymInt[2]. This overload makes
  // torch.ops.convx.conv2d(x, w, padding=1) a valid call. Python forwards it to the one above.
  m.def(
      "conv2d.int(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] "
      "padding=0, int[2] dilation=1, SymInt groups=1, *, str precision=\"ieee\", str "
      "algorithm=\"auto\") -> Tensor");
  m.def("conv2d_act(Tensor input, Tensor weight, Tensor? bias=None, " CONVX_LIST_ARGUMENTS
        ", *, Tensor? residual=None, str activation=\"none\", float negative_slope=0.01, str "
        "precision=\"ieee\", str algorithm=\"auto\") -> Tensor");
  m.def(
      "conv2d_act.int(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] "
      "padding=0, int[2] dilation=1, SymInt groups=1, *, Tensor? residual=None, str "
      "activation=\"none\", float negative_slope=0.01, str precision=\"ieee\", str "
      "algorithm=\"auto\") -> Tensor");
  m.def(
      "conv2d_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[2] stride, "
      "SymInt[2] padding, SymInt[2] dilation, SymInt groups, bool[3] output_mask, *, "
      "str precision=\"ieee\", str algorithm=\"auto\") -> (Tensor, Tensor, Tensor)");
  m.def("_conv2d(Tensor input, Tensor weight, Tensor? bias, " CONVX_SCALAR_ARGUMENTS ") -> Tensor");
  m.def(
      "_conv2d_fused(Tensor input, Tensor weight, Tensor? bias, Tensor? residual, str activation, "
      "float negative_slope, " CONVX_SCALAR_ARGUMENTS ") -> Tensor");
  m.def(
      "_conv2d_input_grad(Tensor grad_output, Tensor weight, SymInt height, SymInt width, bool "
      "channels_last, " CONVX_SCALAR_ARGUMENTS ") -> Tensor");
  m.def(
      "_conv2d_weight_grad(Tensor grad_output, Tensor input, SymInt kernel_h, SymInt kernel_w, "
      "bool channels_last, " CONVX_SCALAR_ARGUMENTS ") -> Tensor");
  m.def("_conv2d_bias_grad(Tensor grad_output) -> Tensor");
  m.def(
      "_conv2d_gradients(Tensor grad_output, Tensor input, Tensor weight, bool needs_input, bool "
      "needs_weight, bool needs_bias, " CONVX_SCALAR_ARGUMENTS ") -> (Tensor, Tensor, Tensor)");
  m.def("_engines_cpu() -> str");
  m.def("_explain_cpu" CONVX_PROBLEM_ARGUMENTS " -> str");
  m.def("_prefer_cpu" CONVX_PROBLEM_ARGUMENTS " -> ()");
  m.def("_record_cpu(bool on) -> str");
  m.def("_autotune_cpu(bool on) -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(convx, CPU, m) { convx::implement_ops(m); }

STABLE_TORCH_LIBRARY_IMPL(convx, CompositeExplicitAutograd, m) {
  m.impl("_engines_cpu", TORCH_BOX(&convx::run_engines));
  m.impl("_explain_cpu", TORCH_BOX(&convx::run_about_problem<&convx::run_explain>));
  m.impl("_prefer_cpu", TORCH_BOX(&convx::run_about_problem<&convx::run_prefer>));
  m.impl("_record_cpu", TORCH_BOX(&convx::run_record));
  m.impl("_autotune_cpu", TORCH_BOX(&convx::run_autotune));
}
