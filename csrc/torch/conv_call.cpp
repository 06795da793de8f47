#include "torch/conv_call.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>

#include "core/plan_cache.h"
#include "core/text.h"
#include "torch/backend.h"
#include "torch/shim_check.h"

namespace convx {
namespace {

using torch::headeronly::ScalarType;

[[noreturn]] void fail(const std::string& message) {
  throw std::runtime_error("convx.conv2d: " + message);
}

std::string sizes_text(const Tensor& tensor) {
  Text out;
  out << "[";
  for (int64_t d = 0; d < tensor.dim(); ++d) out << (d ? ", " : "") << tensor.size(d);
  out << "]";
  return out.str();
}

std::string device_text(const Tensor& tensor) {
  if (tensor.is_cpu()) return "cpu";
  return (tensor.is_cuda() ? "cuda:" : "another kind of device, index ") +
         std::to_string(tensor.get_device_index());
}

DType dtype_of(const Tensor& tensor, const char* name) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return DType::kFloat32;
    case ScalarType::Double:
      return DType::kFloat64;
    case ScalarType::Half:
      return DType::kFloat16;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    default:
      fail(std::string(name) + ".dtype must be float32, float64, float16 or bfloat16, but got " +
           torch::headeronly::toString(tensor.scalar_type()));
  }
}

// Every tensor of a call has the first one's dtype and device.
void check_like(const Tensor& tensor, const char* name, const Tensor& first,
                const char* first_name) {
  if (tensor.scalar_type() != first.scalar_type()) {
    fail(std::string("expected ") + name + " to have the dtype of " + first_name + " (" +
         torch::headeronly::toString(first.scalar_type()) + "), but got " + name +
         ".dtype=" + torch::headeronly::toString(tensor.scalar_type()));
  }
  if (tensor.device() != first.device()) {
    fail(std::string("expected ") + name + " and " + first_name +
         " to be on the same device, but " + name + " is on " + device_text(tensor) + " and " +
         first_name + " is on " + device_text(first));
  }
}

void check_rank(const Tensor& tensor, const char* name, int64_t rank) {
  if (tensor.dim() != rank) {
    fail(std::string("expected ") + name + " to have " + std::to_string(rank) +
         " dimensions, but got " + name + " of size " + sizes_text(tensor));
  }
}

void check_device(const Tensor& tensor, const char* name) {
  const bool here =
      std::string(backend().device_name) == "cpu" ? tensor.is_cpu() : tensor.is_cuda();
  if (!here) {
    fail(std::string("expected ") + name + " to be on a " + backend().device_name +
         " device, but it is on " + device_text(tensor));
  }
}

Strides strides_of(const Tensor& tensor) {
  return {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)};
}

Precision parse_precision(const std::string& precision, DType dtype) {
  const bool follow_torch = precision == "torch";
  if (precision != "ieee" && precision != "tf32" && !follow_torch) {
    fail("precision must be 'ieee', 'tf32' or 'torch', but got precision='" + precision + "'");
  }
  if (dtype != DType::kFloat32 || precision == "ieee") return Precision::kIeee;
  if (follow_torch && !backend().torch_allows_tf32()) return Precision::kIeee;
  return Precision::kTf32;
}

// A problem with everything but the extents and memory strides of its tensors.
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

void check_grad_output(const Tensor& grad_output, const ConvProblem& p) {
  if (grad_output.size(0) != p.N || grad_output.size(1) != p.K || grad_output.size(2) != p.P ||
      grad_output.size(3) != p.Q) {
    Text expected;
    expected << "[" << p.N << ", " << p.K << ", " << p.P << ", " << p.Q << "]";
    fail("expected grad_output to have size " + expected.str() + ", but got " +
         sizes_text(grad_output));
  }
}

Strides dense_strides(bool channels_last, int64_t c, int64_t h, int64_t w) {
  // PyTorch gives empty axes the strides of axes of one element.
  const auto at_least_one = [](int64_t extent) { return extent > 0 ? extent : 1; };
  c = at_least_one(c), h = at_least_one(h), w = at_least_one(w);
  return channels_last ? channels_last_strides(c, h, w) : contiguous_strides(c, h, w);
}

// Uninitialised memory from PyTorch's allocator, on the device of `like`.
Tensor allocate(const Tensor& like, std::span<const int64_t> sizes,
                std::span<const int64_t> strides, int32_t dtype) {
  int32_t device_type;
  AtenTensorHandle handle;
  check_shim(aoti_torch_get_device_type(like.get(), &device_type), "tell a tensor's device");
  check_shim(
      aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
                               dtype, device_type, like.get_device_index(), &handle),
      "allocate memory for a convolution");
  return Tensor(handle);
}

int32_t dtype_code(const Tensor& tensor) {
  int32_t dtype;
  check_shim(aoti_torch_get_dtype(tensor.get(), &dtype), "tell a tensor's dtype");
  return dtype;
}

Tensor allocate_4d(const Tensor& like, const std::array<int64_t, 4>& sizes,
                   const Strides& strides) {
  const std::array<int64_t, 4> steps{strides.n, strides.c, strides.h, strides.w};
  return allocate(like, sizes, steps, dtype_code(like));
}

Tensor allocate_1d(const Tensor& like, int64_t size, int32_t dtype) {
  const int64_t step = 1;
  return allocate(like, {&size, 1}, {&step, 1}, dtype);
}

Tensor allocate_bytes(const Tensor& like, int64_t bytes) {
  return allocate_1d(like, bytes, aoti_torch_dtype_uint8());
}

bool is_channels_last(const Tensor& tensor) {
  return is_channels_last(tensor.size(0), tensor.size(1), tensor.size(2), tensor.size(3),
                          strides_of(tensor));
}

// Memory so short that not even this much can be had is for the caller to deal with.
constexpr int64_t kSmallestWorkspace = 64 << 10;

PlanCache& plan_cache() {
  static PlanCache cache;
  return cache;
}

void plan_and_launch(const ConvProblem& problem, const std::string& algorithm, Buffers buffers,
                     const Tensor& like) {
  const int device = like.get_device_index();
  DeviceCaps caps = backend().query_caps(device);
  while (true) {
    std::string error;
    const Plan plan =
        plan_cache().find_or_choose(backend().engines(), problem, caps, device, algorithm, error);
    if (!error.empty()) fail(error);
    std::optional<Tensor> workspace;
    if (plan.workspace_bytes > 0) {
      try {
        workspace.emplace(allocate_bytes(like, plan.workspace_bytes));
      } catch (const std::runtime_error&) {
        // Plan again for less: smaller chunks, or an engine that needs none.
        caps.workspace_limit = std::min(caps.workspace_limit, plan.workspace_bytes) / 4;
        if (caps.workspace_limit < kSmallestWorkspace) throw;
        continue;
      }
      buffers.workspace = workspace->mutable_data_ptr();
    }
    backend().launch(problem, plan, buffers, device);
    return;
  }
}

}  // namespace

ConvArguments parse_arguments(const std::vector<int64_t>& stride,
                              const std::vector<int64_t>& padding,
                              const std::vector<int64_t>& dilation, int64_t groups,
                              const std::string& precision, const std::string& algorithm) {
  const auto list_text = [](const std::vector<int64_t>& values) {
    Text out;
    out << "[";
    for (size_t i = 0; i < values.size(); ++i) out << (i ? ", " : "") << values[i];
    out << "]";
    return out.str();
  };
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
                   const ConvArguments& arguments) {
  check_rank(input, "input", 4);
  check_rank(weight, "weight", 4);
  ConvProblem problem = start_problem(Pass::kForward, dtype_of(input, "input"), arguments);
  check_device(input, "input");
  check_like(weight, "weight", input, "input");
  problem.has_bias = bias.has_value();
  problem.N = input.size(0), problem.C = input.size(1);
  problem.H = input.size(2), problem.W = input.size(3);
  problem.K = weight.size(0), problem.R = weight.size(2), problem.S = weight.size(3);
  check_problem(problem, weight.size(1));
  if (bias) {
    check_like(*bias, "bias", input, "input");
    if (bias->dim() != 1 || bias->size(0) != problem.K) {
      fail("expected bias to be 1-dimensional with " + std::to_string(problem.K) +
           " elements (weight.size(0)), but got bias of size " + sizes_text(*bias));
    }
  }

  // An empty batch is contiguous, as in PyTorch, whatever the weight's format.
  const bool channels_last = problem.N > 0 && (is_channels_last(input) || is_channels_last(weight));
  problem.x_strides = strides_of(input);
  problem.w_strides = strides_of(weight);
  problem.y_strides = dense_strides(channels_last, problem.K, problem.P, problem.Q);
  Tensor output =
      allocate_4d(input, {problem.N, problem.K, problem.P, problem.Q}, problem.y_strides);
  if (problem.N == 0) return output;

  // Engines read the bias with stride 1; a broadcast or sliced one is rare enough to copy.
  std::optional<Tensor> packed_bias;
  if (bias && problem.K > 1 && bias->stride(0) != 1) {
    packed_bias.emplace(allocate_1d(input, problem.K, dtype_code(*bias)));
    torch::stable::copy_(*packed_bias, *bias);
  }
  Buffers buffers;
  buffers.x = input.data_ptr();
  buffers.w = weight.data_ptr();
  buffers.y = output.mutable_data_ptr();
  if (bias) buffers.bias = (packed_bias ? *packed_bias : *bias).data_ptr();
  plan_and_launch(problem, arguments.algorithm, buffers, input);
  return output;
}

Tensor run_input_grad(const Tensor& grad_output, const Tensor& weight, int64_t height,
                      int64_t width, bool channels_last, const ConvArguments& arguments) {
  check_rank(grad_output, "grad_output", 4);
  check_rank(weight, "weight", 4);
  ConvProblem problem =
      start_problem(Pass::kInputGrad, dtype_of(grad_output, "grad_output"), arguments);
  check_device(grad_output, "grad_output");
  check_like(weight, "weight", grad_output, "grad_output");
  problem.N = grad_output.size(0), problem.C = weight.size(1) * problem.groups;
  problem.H = height, problem.W = width;
  problem.K = weight.size(0), problem.R = weight.size(2), problem.S = weight.size(3);
  check_problem(problem, weight.size(1));
  check_grad_output(grad_output, problem);

  problem.x_strides = dense_strides(channels_last, problem.C, problem.H, problem.W);
  problem.w_strides = strides_of(weight);
  problem.y_strides = strides_of(grad_output);
  Tensor grad_input =
      allocate_4d(weight, {problem.N, problem.C, problem.H, problem.W}, problem.x_strides);
  if (problem.N == 0) return grad_input;

  Buffers buffers;
  buffers.x = grad_input.mutable_data_ptr();
  buffers.w = weight.data_ptr();
  buffers.y = grad_output.data_ptr();
  plan_and_launch(problem, arguments.algorithm, buffers, grad_output);
  return grad_input;
}

Tensor run_weight_grad(const Tensor& grad_output, const Tensor& input, int64_t kernel_h,
                       int64_t kernel_w, bool channels_last, const ConvArguments& arguments) {
  check_rank(grad_output, "grad_output", 4);
  check_rank(input, "input", 4);
  ConvProblem problem =
      start_problem(Pass::kWeightGrad, dtype_of(grad_output, "grad_output"), arguments);
  check_device(grad_output, "grad_output");
  check_like(input, "input", grad_output, "grad_output");
  problem.N = input.size(0), problem.C = input.size(1);
  problem.H = input.size(2), problem.W = input.size(3);
  problem.K = grad_output.size(1), problem.R = kernel_h, problem.S = kernel_w;
  const int64_t weight_channels = problem.groups > 0 ? problem.C / problem.groups : 0;
  check_problem(problem, weight_channels);
  check_grad_output(grad_output, problem);

  problem.x_strides = strides_of(input);
  problem.w_strides = dense_strides(channels_last, weight_channels, problem.R, problem.S);
  problem.y_strides = strides_of(grad_output);
  Tensor grad_weight =
      allocate_4d(input, {problem.K, weight_channels, problem.R, problem.S}, problem.w_strides);

  // An empty batch still has a gradient, of zeros.
  if (problem.N == 0) return torch::stable::zero_(grad_weight);
  Buffers buffers;
  buffers.x = input.data_ptr();
  buffers.w = grad_weight.mutable_data_ptr();
  buffers.y = grad_output.data_ptr();
  plan_and_launch(problem, arguments.algorithm, buffers, grad_output);
  return grad_weight;
}

Tensor run_bias_grad(const Tensor& grad_output) {
  check_rank(grad_output, "grad_output", 4);
  check_device(grad_output, "grad_output");
  ConvProblem problem;
  problem.dtype = dtype_of(grad_output, "grad_output");
  problem.N = grad_output.size(0), problem.K = grad_output.size(1);
  problem.P = grad_output.size(2), problem.Q = grad_output.size(3);
  problem.y_strides = strides_of(grad_output);

  const int device = grad_output.get_device_index();
  Tensor grad_bias = allocate_1d(grad_output, problem.K, dtype_code(grad_output));
  if (grad_output.numel() == 0) return torch::stable::zero_(grad_bias);

  std::optional<Tensor> workspace;
  const int64_t bytes = backend().bias_grad_workspace_bytes(problem);
  if (bytes > 0) workspace = allocate_bytes(grad_output, bytes);
  backend().bias_grad(problem, grad_output.data_ptr(), grad_bias.mutable_data_ptr(),
                      workspace ? workspace->mutable_data_ptr() : nullptr, device);
  return grad_bias;
}

std::tuple<Tensor, Tensor, Tensor> run_backward(const Tensor& grad_output, const Tensor& input,
                                                const Tensor& weight, const std::vector<bool>& mask,
                                                const ConvArguments& arguments) {
  check_rank(grad_output, "grad_output", 4);
  check_rank(input, "input", 4);
  check_rank(weight, "weight", 4);
  if (input.size(1) != weight.size(1) * arguments.groups) {
    fail("expected input to have weight.size(1)=" + std::to_string(weight.size(1)) +
         " times groups=" + std::to_string(arguments.groups) +
         " channels, but got input.size(1)=" + std::to_string(input.size(1)));
  }
  Tensor grad_input, grad_weight, grad_bias;
  if (mask[0]) {
    grad_input = run_input_grad(grad_output, weight, input.size(2), input.size(3),
                                is_channels_last(input), arguments);
  }
  if (mask[1]) {
    grad_weight = run_weight_grad(grad_output, input, weight.size(2), weight.size(3),
                                  is_channels_last(weight), arguments);
  }
  if (mask[2]) grad_bias = run_bias_grad(grad_output);
  return {grad_input, grad_weight, grad_bias};
}

std::string run_explain(const ProblemText& text, const ConvArguments& arguments, int device) {
  const auto parse = [](const auto& choices, const std::string& name, const char* what) {
    for (auto choice : choices) {
      if (name == name_of(choice)) return choice;
    }
    fail(std::string("unknown ") + what + "='" + name + "'");
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
  problem.has_bias = text.has_bias;
  problem.N = x[0], problem.C = x[1], problem.H = x[2], problem.W = x[3];
  problem.K = w[0], problem.R = w[2], problem.S = w[3];
  check_problem(problem, w[1]);
  problem.x_strides = to_strides(text.input_stride);
  problem.w_strides = to_strides(text.weight_stride);
  const bool channels_last = is_channels_last(x[0], x[1], x[2], x[3], problem.x_strides) ||
                             is_channels_last(w[0], w[1], w[2], w[3], problem.w_strides);
  problem.y_strides = dense_strides(channels_last, problem.K, problem.P, problem.Q);
  const Choice choice = choose_engine(backend().engines(), problem, backend().query_caps(device),
                                      arguments.algorithm);
  return describe_choice(choice, problem);
}

}  // namespace convx
