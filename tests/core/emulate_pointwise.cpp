// cuda_pointwise, launches and kernels, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "device/async_copy.cuh"
#include "emulate_pointwise.h"
#include "emulated_cuda/workspace.h"
#include "engines/cuda/pointwise/few_filters_launch.cu"
#include "engines/cuda/pointwise/pointwise_kernel.cu"

namespace convx {

const char *emulate_pointwise(const ConvProblem &problem, const Plan &plan,
                              Buffers buffers, bool &unfit) {
  const emulator::Workspace workspace(plan.workspace_bytes);
  buffers.workspace = workspace.data();
  emulator::fault = nullptr;
  emulator::let_copies_read_source(problem, buffers);
  launch_cuda_pointwise({"cuda_pointwise", &problem}, plan, buffers);
  unfit = plan.workspace_bytes > 0 &&
          static_cast<const HalfScales *>(workspace.data())->unfit != 0;
  if (!end_bulk_stores())
    return "a block ended before its copies";
  return workspace.is_whole() ? emulator::fault : "the workspace was overrun";
}

} // namespace convx
