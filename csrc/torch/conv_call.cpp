#include "torch/conv_call.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "core/plan_cache.h"
#include "core/text.h"
#include "torch/backend.h"
#include "torch/operand.h"

namespace convx {
namespace {

Precision parse_precision(std::string_view precision, DType dtype) {
  const bool follow_torch = precision == "torch";
  if (precision != "ieee" && precision != "tf32" && !follow_torch) {
    fail("precision must be 'ieee', 'tf32' or 'torch', but got precision=" + word_text(precision));
  }
  if (dtype != DType::kFloat32 || precision == "ieee") return Precision::kIeee;
  if (follow_torch && !backend().torch_allows_tf32()) return Precision::kIeee;
  return Precision::kTf32;
}

// Fills everything except the extents and memory strides of the tensors.
ConvProblem start_problem(Pass pass, DType dtype, const ConvArguments& arguments) {
  ConvProblem problem;
  problem.pass = pass;
  problem.dtype = dtype;
  problem.precision = parse_precision(arguments.precision, dtype);
  problem.groups = arguments.groups;
  problem.stride = arguments.stride;
  problem.dilation = arguments.dilation;
  problem.pad = arguments.pad;
  return problem;
}

void check_problem(ConvProblem& problem, int64_t weight_channels) {
  if (std::string error = validate(problem, weight_channels); !error.empty()) fail(error);
}

Activation parse_activation(std::string_view name) {
  std::string names;
  for (Activation activation : kActivations) {
    if (name == name_of(activation)) return activation;
    names += std::string(names.empty() ? "'" : ", '") + name_of(activation) + "'";
  }
  fail("activation must be one of " + names + ", but got activation=" + word_text(name));
}

// Fills the epilogue, for an output that the problem describes. Returns the residual with the
// output's strides: the caller's tensor, or a copy of it.
std::optional<Tensor> parse_fusion(ConvProblem& problem, const FusionArguments& fusion,
                                   const Operand& x) {
  problem.epilogue.activation = parse_activation(fusion.activation);
  if (problem.epilogue.activation == Activation::kLeakyRelu) {
    problem.epilogue.slope = fusion.slope;
    if (!std::isfinite(problem.epilogue.slope)) fail("negative_slope must be a finite number");
  }
  if (!fusion.residual) return {};
  const Operand residual(*fusion.residual, "residual");
  check_image_rank(residual);
  check_like(residual, x);
  const std::array<int64_t, 4> size{problem.N, problem.output_channels(), problem.P, problem.Q};
  if (!std::equal(size.begin(), size.end(), residual.sizes)) {
    fail("expected residual to have the output's size " + list_text(size) + ", but got " +
         residual.sizes_text());
  }
  problem.epilogue.has_residual = true;
  ConvProblem as_residual = problem;
  as_residual.y_strides = residual.strides();
  if (drop_unused_strides(as_residual).y_strides == drop_unused_strides(problem).y_strides) {
    return *fusion.residual;
  }
  Tensor copy = allocate_4d(x, size, problem.y_strides);
  torch::stable::copy_(copy, *fusion.residual);
  return copy;
}

void check_grad_output(const Operand& grad_output, const ConvProblem& p) {
  const int64_t* sizes = grad_output.sizes;
  const std::array<int64_t, 4> expected{p.N, p.output_channels(), p.P, p.Q};
  if (!std::equal(expected.begin(), expected.end(), sizes)) {
    fail("expected grad_output to have size " + list_text(expected) + ", but got " +
         grad_output.sizes_text());
  }
}

Strides dense_strides(bool channels_last, int64_t c, int64_t h, int64_t w) {
  // PyTorch computes the strides of an empty axis as if it had one element.
  const auto at_least_one = [](int64_t extent) { return extent > 0 ? extent : 1; };
  c = at_least_one(c), h = at_least_one(h), w = at_least_one(w);
  return channels_last ? channels_last_strides(c, h, w) : contiguous_strides(c, h, w);
}

ConvProblem parse_problem(const ProblemText& text, const ConvArguments& arguments) {
  const auto parse = [](const auto& choices, const std::string& name, const char* what) {
    for (auto choice : choices) {
      if (name == name_of(choice)) return choice;
    }
    fail(std::string("unknown ") + what + "=" + word_text(name));
  };
  constexpr std::array kPasses{Pass::kForward, Pass::kInputGrad, Pass::kWeightGrad};
  constexpr std::array kDTypes{DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
  for (const auto* list :
       {&text.input_size, &text.input_stride, &text.weight_size, &text.weight_stride}) {
    if (list->size() != 4) fail("expected input and weight to have 4 dimensions");
  }
  const auto& x = text.input_size;
  const auto& w = text.weight_size;
  const auto to_strides = [](const std::vector<int64_t>& v) {
    return Strides{v[0], v[1], v[2], v[3]};
  };
  ConvProblem problem = start_problem(parse(kPasses, text.direction, "direction"),
                                      parse(kDTypes, text.dtype, "dtype"), arguments);
  problem.epilogue.has_bias = text.has_bias;
  problem.epilogue.has_residual = text.has_residual;
  problem.epilogue.activation = parse_activation(text.activation);
  if (problem.pass != Pass::kForward && problem.epilogue.is_fused()) {
    fail("activation and residual belong to direction='forward', but got direction=" +
         word_text(text.direction));
  }
  problem.N = x[0], problem.C = x[1], problem.H = x[2], problem.W = x[3];
  problem.K = w[0], problem.R = w[2], problem.S = w[3];
  check_problem(problem, w[1]);
  if (problem.C == 0) fail("an input without channels has no engine: there is nothing to compute");
  problem.x_strides = to_strides(text.input_stride);
  problem.w_strides = to_strides(text.weight_stride);
  const bool channels_last = is_channels_last(x[0], x[1], x[2], x[3], problem.x_strides) ||
                             is_channels_last(w[0], w[1], w[2], w[3], problem.w_strides);
  problem.y_strides = text.output_stride.size() == 4
                          ? to_strides(text.output_stride)
                          : dense_strides(channels_last, problem.K, problem.P, problem.Q);
  return problem;
}

// If not even this much memory can be allocated, the call fails.
constexpr int64_t kSmallestWorkspace = 64 << 10;

PlanCache& plan_cache() {
  static PlanCache cache;
  return cache;
}

std::string describe_call(const PlanCache::Call& call) {
  Text out;
  out << "{\"device\": " << int64_t{call.device} << ", \"problem\": " << describe(call.problem)
      << "}";
  return out.str();
}

// Python measures (conv2d_ext/tuning.py) and reports the fastest engine with _prefer_cpu or
// _prefer_cuda.
void ask_to_measure(const PlanCache::Call& call) {
  using torch::stable::detail::from;
  std::array<StableIValue, 2> stack{from(std::string(backend().device_name)),
                                    from(describe_call(call))};
  check_shim(torch_call_dispatcher("convx::_measure", "", stack.data(), TORCH_ABI_VERSION),
             "measure a convolution");
}

void plan_and_launch(const ConvProblem& problem, std::string_view algorithm, Buffers buffers,
                     const Operand& like) {
  const Backend& here = backend();
  const int device = std::max(like.device, 0);  // PyTorch's CPU device has index -1
  DeviceCaps caps = here.query_caps(device);
  while (true) {
    std::string error;
    const auto plan =
        plan_cache().find_or_choose(here.engines(), problem, caps, device, algorithm, error);
    if (!plan) fail(error);
    std::optional<Tensor> workspace;
    const int64_t workspace_bytes = find_workspace_bytes(*plan, buffers);
    if (workspace_bytes > 0) {
      try {
        workspace.emplace(allocate_bytes(like, workspace_bytes));
      } catch (const std::runtime_error&) {
        // Plan again with a lower limit: smaller chunks, or an engine without a workspace.
        caps.workspace_limit = std::min(caps.workspace_limit, workspace_bytes) / 4;
        if (caps.workspace_limit < kSmallestWorkspace) throw;
        continue;
      }
      buffers.workspace = workspace->mutable_data_ptr();
    }
    here.launch(problem, *plan, buffers, device);
    return;
  }
}

}  // namespace

ConvArguments parse_arguments(const std::vector<int64_t>& stride,
                              const std::vector<int64_t>& padding,
                              const std::vector<int64_t>& dilation, int64_t groups,
                              std::string_view precision, std::string_view algorithm) {
  const auto parse_pair = [&](const char* name, const std::vector<int64_t>& values) -> Hw {
    if (values.size() == 1) return {values[0], values[0]};
    if (values.size() == 2) return {values[0], values[1]};
    fail(std::string(name) + " must have 1 or 2 values, but got " + name + "=" + list_text(values));
  };
  ConvArguments arguments;
  arguments.stride = parse_pair("stride", stride);
  arguments.dilation = parse_pair("dilation", dilation);
  if (padding.size() == 4) {
    arguments.pad = {padding[0], padding[1], padding[2], padding[3]};
  } else if (padding.size() == 1 || padding.size() == 2) {
    const Hw pad = parse_pair("padding", padding);
    arguments.pad = {pad.h, pad.h, pad.w, pad.w};
  } else {
    fail("padding must have 1, 2 or 4 values, but got padding=" + list_text(padding));
  }
  arguments.groups = groups;
  arguments.precision = precision;
  arguments.algorithm = algorithm;
  return arguments;
}

Tensor run_forward(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   const ConvArguments& arguments, const FusionArguments* fusion) {
  const Operand x(input, "input");
  const Operand w(weight, "weight");
  check_image_rank(x);
  check_rank(w, 4);
  ConvProblem problem = start_problem(Pass::kForward, check_dtype(x), arguments);
  check_device(x);
  check_like(w, x);
  problem.epilogue.has_bias = bias.has_value();
  problem.N = x.sizes[0], problem.C = x.sizes[1], problem.H = x.sizes[2], problem.W = x.sizes[3];
  problem.K = w.sizes[0], problem.R = w.sizes[2], problem.S = w.sizes[3];
  check_problem(problem, w.sizes[1]);
  // Engines read the bias with stride 1. A broadcast or sliced bias is rare enough to copy.
  bool copies_bias = false;
  if (bias) {
    const Operand b(*bias, "bias");
    check_like(b, x);
    if (b.rank != 1 || b.sizes[0] != problem.K) {
      fail("expected bias to be 1-dimensional with " + std::to_string(problem.K) +
           " elements (weight.size(0)), but got bias of size " + b.sizes_text());
    }
    copies_bias = problem.K > 1 && b.steps[0] != 1;
  }

  // As in PyTorch, the output of an empty batch is contiguous, whatever the weight's format.
  const bool channels_last = problem.N > 0 && (x.is_channels_last() || w.is_channels_last());
  problem.x_strides = x.strides();
  problem.w_strides = w.strides();
  const int64_t channels = problem.output_channels();
  problem.y_strides = dense_strides(channels_last, channels, problem.P, problem.Q);
  std::optional<Tensor> residual;
  if (fusion) residual = parse_fusion(problem, *fusion, x);
  Tensor output = allocate_4d(x, {problem.N, channels, problem.P, problem.Q}, problem.y_strides);
  if (problem.N == 0 || channels == 0) return output;

  std::optional<Tensor> packed_bias;
  if (copies_bias) {
    packed_bias.emplace(allocate_1d(x, problem.K));
    torch::stable::copy_(*packed_bias, *bias);
  }
  Buffers buffers;
  buffers.x = input.data_ptr();
  buffers.w = weight.data_ptr();
  buffers.y = output.mutable_data_ptr();
  if (bias) buffers.bias = (packed_bias ? *packed_bias : *bias).data_ptr();
  if (residual) buffers.residual = residual->data_ptr();
  plan_and_launch(problem, arguments.algorithm, buffers, x);
  return output;
}

Tensor run_input_grad(const Tensor& grad_output, const Tensor& weight, int64_t height,
                      int64_t width, bool channels_last, const ConvArguments& arguments) {
  const Operand y(grad_output, "grad_output");
  const Operand w(weight, "weight");
  check_image_rank(y);
  check_rank(w, 4);
  ConvProblem problem = start_problem(Pass::kInputGrad, check_dtype(y), arguments);
  check_device(y);
  check_like(w, y);
  problem.N = y.sizes[0], problem.C = w.sizes[1] * problem.groups;
  problem.H = height, problem.W = width;
  problem.K = w.sizes[0], problem.R = w.sizes[2], problem.S = w.sizes[3];
  check_problem(problem, w.sizes[1]);
  check_grad_output(y, problem);

  problem.x_strides = dense_strides(channels_last, problem.C, problem.H, problem.W);
  problem.w_strides = w.strides();
  problem.y_strides = y.strides();
  Tensor grad_input =
      allocate_4d(y, {problem.N, problem.C, problem.H, problem.W}, problem.x_strides);
  if (problem.N == 0 || problem.C == 0) return grad_input;

  Buffers buffers;
  buffers.x = grad_input.mutable_data_ptr();
  buffers.w = weight.data_ptr();
  buffers.y = grad_output.data_ptr();
  plan_and_launch(problem, arguments.algorithm, buffers, y);
  return grad_input;
}

Tensor run_weight_grad(const Tensor& grad_output, const Tensor& input, int64_t kernel_h,
                       int64_t kernel_w, bool channels_last, const ConvArguments& arguments) {
  const Operand y(grad_output, "grad_output");
  const Operand x(input, "input");
  check_image_rank(y);
  check_image_rank(x);
  ConvProblem problem = start_problem(Pass::kWeightGrad, check_dtype(y), arguments);
  check_device(y);
  check_like(x, y);
  problem.N = x.sizes[0], problem.C = x.sizes[1], problem.H = x.sizes[2], problem.W = x.sizes[3];
  problem.K = y.sizes[1], problem.R = kernel_h, problem.S = kernel_w;
  const int64_t weight_channels = problem.groups > 0 ? problem.C / problem.groups : 0;
  check_problem(problem, weight_channels);
  check_grad_output(y, problem);

  problem.x_strides = x.strides();
  problem.w_strides = dense_strides(channels_last, weight_channels, problem.R, problem.S);
  problem.y_strides = y.strides();
  Tensor grad_weight =
      allocate_4d(y, {problem.K, weight_channels, problem.R, problem.S}, problem.w_strides);

  // The weight gradient of an empty batch is zero.
  if (problem.N == 0) return torch::stable::zero_(grad_weight);
  Buffers buffers;
  buffers.x = input.data_ptr();
  buffers.w = grad_weight.mutable_data_ptr();
  buffers.y = grad_output.data_ptr();
  plan_and_launch(problem, arguments.algorithm, buffers, y);
  return grad_weight;
}

Tensor run_bias_grad(const Tensor& grad_output) {
  const Operand y(grad_output, "grad_output");
  check_image_rank(y);
  check_device(y);
  ConvProblem problem;
  problem.dtype = check_dtype(y);
  problem.N = y.sizes[0], problem.K = y.sizes[1], problem.P = y.sizes[2], problem.Q = y.sizes[3];
  problem.y_strides = y.strides();

  Tensor grad_bias = allocate_1d(y, problem.K);
  if (grad_output.numel() == 0) return torch::stable::zero_(grad_bias);

  std::optional<Tensor> workspace;
  const int64_t bytes = backend().bias_grad_workspace_bytes(problem);
  if (bytes > 0) workspace = allocate_bytes(y, bytes);
  backend().bias_grad(problem, grad_output.data_ptr(), grad_bias.mutable_data_ptr(),
                      workspace ? workspace->mutable_data_ptr() : nullptr, y.device);
  return grad_bias;
}

std::tuple<Tensor, Tensor, Tensor> run_backward(const Tensor& grad_output, const Tensor& input,
                                                const Tensor& weight, const GradMask& mask,
                                                const ConvArguments& arguments) {
  const Operand x(input, "input");
  const Operand w(weight, "weight");
  check_image_rank(Operand(grad_output, "grad_output"));
  check_image_rank(x);
  check_rank(w, 4);
  if (x.sizes[1] != w.sizes[1] * arguments.groups) {
    fail("expected input to have weight.size(1)=" + std::to_string(w.sizes[1]) +
         " times groups=" + std::to_string(arguments.groups) +
         " channels, but got input.size(1)=" + std::to_string(x.sizes[1]));
  }
  Tensor grad_input, grad_weight, grad_bias;
  if (x.sizes[1] == 0) {
    // grad_output has no channels, so every gradient is empty or zero.
    grad_input = run_input_grad(grad_output, weight, x.sizes[2], x.sizes[3], false, arguments);
    if (!mask[0]) grad_input = Tensor();
    const Strides strides = dense_strides(false, 0, w.sizes[2], w.sizes[3]);
    if (mask[1]) grad_weight = allocate_4d(w, {w.sizes[0], 0, w.sizes[2], w.sizes[3]}, strides);
    if (mask[2]) {
      grad_bias = allocate_1d(w, w.sizes[0]);
      torch::stable::zero_(grad_bias);
    }
    return {grad_input, grad_weight, grad_bias};
  }
  if (mask[0]) {
    grad_input = run_input_grad(grad_output, weight, x.sizes[2], x.sizes[3], x.is_channels_last(),
                                arguments);
  }
  if (mask[1]) {
    grad_weight = run_weight_grad(grad_output, input, w.sizes[2], w.sizes[3], w.is_channels_last(),
                                  arguments);
  }
  if (mask[2]) grad_bias = run_bias_grad(grad_output);
  return {grad_input, grad_weight, grad_bias};
}

std::string run_engines() {
  Text out;
  write_list(out, backend().engines(), [&](const Engine& engine) { out << quote(engine.name); });
  return out.str();
}

std::string run_explain(const ProblemText& text, const ConvArguments& arguments, int device) {
  const ConvProblem problem = parse_problem(text, arguments);
  const DeviceCaps caps = backend().query_caps(device);
  const Choice choice =
      plan_cache().choose(backend().engines(), problem, caps, device, arguments.algorithm);
  return describe_choice(choice, problem, caps);
}

void run_prefer(const ProblemText& text, const ConvArguments& arguments, int device) {
  const ConvProblem problem = parse_problem(text, arguments);
  const Choice choice = choose_engine(backend().engines(), problem, backend().query_caps(device),
                                      arguments.algorithm, Listed::kEligible);
  if (!choice.error.empty()) fail(choice.error);
  plan_cache().prefer(problem, device, arguments.algorithm);
}

std::string run_record(bool on) {
  Text out;
  write_list(out, plan_cache().record(on),
             [&](const PlanCache::Call& call) { out << describe_call(call); });
  return out.str();
}

bool run_autotune(bool on) {
  return plan_cache().measure_new(on ? ask_to_measure : nullptr) != nullptr;
}

}  // namespace convx
