#include <torch/csrc/stable/ops.h>

#include "engines/engines.h"
#include "torch/backend.h"

namespace convx {
namespace {

// Runs tasks on PyTorch's thread pool, so that torch.set_num_threads applies to convx too.
TaskRunner torch_threads() {
  TaskRunner runner;
  runner.slots = static_cast<int>(torch::stable::get_num_threads());
  runner.run = [](int slots, void (*body)(void*, int), void* context) {
    torch::stable::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) body(context, static_cast<int>(slot));
    });
  };
  return runner;
}

DeviceCaps query_caps(int) {
  DeviceCaps caps;
  caps.threads = torch_threads().slots;
  caps.simd_bytes = cpu_simd_bytes();
  return caps;
}

void launch(const ConvProblem& problem, const Plan& plan, const Buffers& buffers, int) {
  launch_cpu(problem, plan, buffers, torch_threads());
}

void bias_grad(const ConvProblem& problem, const void* y, void* grad_bias, void*, int) {
  cpu_bias_grad(problem, y, grad_bias, torch_threads());
}

}  // namespace

const Backend& backend() {
  static const Backend cpu{
      .device_name = "cpu",
      .device_type = aoti_torch_device_type_cpu(),
      .engines = cpu_engines,
      .query_caps = query_caps,
      .torch_allows_tf32 = [] { return false; },  // the CPU engines compute in full float32
      .launch = launch,
      .bias_grad_workspace_bytes = [](const ConvProblem&) -> int64_t { return 0; },
      .bias_grad = bias_grad,
  };
  return cpu;
}

}  // namespace convx
