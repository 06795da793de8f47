// The bias gradient, launches and kernels, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_bias_grad.h"
#include "emulated_cuda/workspace.h"

using cudaStream_t = void*;

#include "engines/cuda/bias_grad/bias_grad.cu"

namespace convx {

EmulatedBiasGrad emulate_bias_grad(const ConvProblem& problem, const void* y, void* grad_bias,
                                   bool descending) {
  const BiasGradPlan plan = plan_bias_grad(problem);
  const emulator::Workspace workspace(cuda_bias_grad_workspace_bytes(problem));
  emulator::fault = nullptr;
  emulator::descending = descending;
  cuda_bias_grad(problem, y, grad_bias, workspace.data(), CudaContext{});
  emulator::descending = false;
  constexpr const char* kLayouts[] = {"runs", "columns", "strided"};
  return {workspace.is_whole() ? emulator::fault : "the workspace was overrun",
          kLayouts[static_cast<int>(plan.layout)], plan.slices, plan.single_launch ? 1 : 2};
}

}  // namespace convx
