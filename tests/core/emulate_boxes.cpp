// cuda_boxes, launches and kernels, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "device/async_copy.cuh"
#include "emulate_boxes.h"
#include "emulated_cuda/workspace.h"
#include "engines/cuda/boxes/boxes_launch.cu"
#include "engines/cuda/boxes/boxes_16bit.cu"

namespace convx {

const char *emulate_boxes(const ConvProblem &problem, const Plan &plan,
                          Buffers buffers, bool descending) {
  const emulator::Workspace workspace(plan.workspace_bytes);
  buffers.workspace = workspace.data();
  emulator::fault = nullptr;
  emulator::let_copies_read_source(problem, buffers);
  emulator::descending = descending;
  launch_cuda_boxes({"cuda_boxes", &problem}, plan, buffers);
  emulator::descending = false;
  if (!end_bulk_stores())
    return "a block ended before its copies";
  return workspace.is_whole() ? emulator::fault : "the workspace was overrun";
}

} // namespace convx
