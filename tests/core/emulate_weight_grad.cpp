// cuda_weight_grad, launches and kernels, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "device/async_copy.cuh"
#include "emulate_weight_grad.h"
#include "emulated_cuda/workspace.h"
#include "engines/cuda/weight_grad/weight_grad_launch.cu"
#include "engines/cuda/weight_grad/wgrad_float32.cu"

namespace convx {

const char *emulate_cuda_weight_grad(const ConvProblem &problem,
                                     const Plan &plan, Buffers buffers) {
  const emulator::Workspace workspace(find_workspace_bytes(plan, buffers));
  buffers.workspace = workspace.data();
  emulator::fault = nullptr;
  launch_cuda_weight_grad({"cuda_weight_grad", &problem}, plan, buffers);
  if (!end_bulk_stores())
    return "a block ended before its copies";
  return workspace.is_whole() ? emulator::fault : "the workspace was overrun";
}

} // namespace convx
