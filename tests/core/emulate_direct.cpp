// cuda_direct's weight gradients by pixels, launches and kernels, run on the host from its own
// source.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_direct.h"
#include "emulated_cuda/workspace.h"
#include "engines/cuda/direct/weight_grad_pixels.cu"

namespace convx {

const char* emulate_direct_pixels(const ConvProblem& problem, const WeightGradShape& shape,
                                  Buffers buffers) {
  const emulator::Workspace workspace(shape.workspace_bytes);
  buffers.workspace = workspace.data();
  emulator::fault = nullptr;
  launch_weight_grad_pixels({"cuda_direct", &problem}, make_weight_grad_fit(problem, shape),
                            buffers);
  return workspace.is_whole() ? emulator::fault : "the workspace was overrun";
}

}  // namespace convx
