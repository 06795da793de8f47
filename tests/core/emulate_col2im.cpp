// cuda_col2im, launches and kernels, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_col2im.h"
#include "emulated_cuda/workspace.h"
#include "engines/cuda/input_grad/col2im_launch.cu"

namespace convx {

const char* emulate_col2im(const ConvProblem& problem, const Plan& plan, Buffers buffers,
                           HalfScales& found) {
  const emulator::Workspace workspace(plan.workspace_bytes);
  buffers.workspace = workspace.data();
  emulator::fault = nullptr;
  launch_cuda_col2im({"cuda_col2im", &problem}, plan, buffers);
  found = *static_cast<const HalfScales*>(workspace.data());
  return workspace.is_whole() ? emulator::fault : "the workspace was overrun";
}

}  // namespace convx
