// cuda_pixels, launches and kernels, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_pixel_kernels.h"
#include "emulated_cuda/workspace.h"
#include "engines/cuda/pixels/pixels_launch.cu"
#include "engines/cuda/pixels/pixels_16bit.cu"

namespace convx {

const char* emulate_pixels(const ConvProblem& problem, const Plan& plan, Buffers buffers,
                           bool descending, bool& unfit) {
  const emulator::Workspace workspace(plan.workspace_bytes);
  buffers.workspace = workspace.data();
  emulator::fault = nullptr;
  emulator::descending = descending;
  launch_cuda_pixels({"cuda_pixels", &problem}, plan, buffers);
  emulator::descending = false;
  unfit = static_cast<const HalfScales*>(workspace.data())->unfit != 0;
  return workspace.is_whole() ? emulator::fault : "the workspace was overrun";
}

}  // namespace convx
