#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/library.h>

#include <array>
#include <atomic>
#include <optional>

#include "cuda/device_query.h"
#include "engines/engines.h"
#include "torch/backend.h"
#include "torch/operand.h"

namespace convx {
namespace {

// PyTorch's cuBLAS handle on the current device, already bound to the current stream.
void* torch_blas() {
  void* handle = nullptr;
  check_shim(torch_get_current_cuda_blas_handle(&handle), "provide a cuBLAS handle");
  return handle;
}

CudaContext torch_context(int device) {
  CudaContext context;
  check_shim(aoti_torch_get_current_cuda_stream(device, &context.stream),
             "tell the current CUDA stream");
  context.get_blas = torch_blas;
  return context;
}

// The settings live in torch.backends, which only Python can read, so conv2d_ext registers an
// operator that returns them. Without Python (AOTInductor in a C++ program) float32 stays float32.
bool torch_allows_tf32() {
  std::array<StableIValue, 1> stack{};
  if (torch_call_dispatcher("convx::_torch_allows_tf32", "", stack.data(), TORCH_ABI_VERSION) !=
      AOTI_TORCH_SUCCESS) {
    return false;
  }
  return torch::stable::detail::to<bool>(stack[0]);
}

std::atomic<int64_t> workspace_limit{DeviceCaps{}.workspace_limit};

DeviceCaps query_caps(int device) {
  DeviceCaps caps = query_cuda_caps(device);
  caps.workspace_limit = workspace_limit;
  return caps;
}

// Makes a device and its context current until the end of the scope. Usually they already are, and
// PyTorch's guard costs more than the query.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    if (current_cuda_device() != device) guard_.emplace(device);
    // In a new thread, such as one of autograd's, the runtime's first call would bind the context.
    // But the first call may be the driver's, which encodes a tensor map and fails without one.
    thread_local bool has_context = false;
    if (has_context) return;
    bind_cuda_context(device);
    has_context = true;
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

void launch(const ConvProblem& problem, const Plan& plan, const Buffers& buffers, int device) {
  const DeviceScope scope(device);
  launch_cuda(problem, plan, buffers, torch_context(device));
}

void bias_grad(const ConvProblem& problem, const void* y, void* grad_bias, void* workspace,
               int device) {
  const DeviceScope scope(device);
  cuda_bias_grad(problem, y, grad_bias, workspace, torch_context(device));
}

}  // namespace

int64_t set_workspace_limit(int64_t bytes) { return workspace_limit.exchange(bytes); }

const Backend& backend() {
  static const Backend cuda{
      .device_name = "cuda",
      .device_type = aoti_torch_device_type_cuda(),
      .engines = cuda_engines,
      .query_caps = query_caps,
      .torch_allows_tf32 = torch_allows_tf32,
      .launch = launch,
      .bias_grad_workspace_bytes = cuda_bias_grad_workspace_bytes,
      .bias_grad = bias_grad,
  };
  return cuda;
}

}  // namespace convx
