// cuda_lines, launches and kernels, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "device/async_copy.cuh"
#include "emulate_lines.h"
#include "emulated_cuda/workspace.h"
#include "engines/cuda/lines/lines_launch.cu"
#include "engines/cuda/lines/lines_16bit.cu"
#include "engines/cuda/lines/lines_tf32.cu"

namespace convx {

const char *emulate_lines(const ConvProblem &problem, const Plan &plan,
                          Buffers buffers, bool descending, HalfScales &found) {
  const emulator::Workspace workspace(plan.workspace_bytes);
  buffers.workspace = workspace.data();
  emulator::let_copies_read_source(problem, buffers);
  emulator::fault = nullptr;
  emulator::descending = descending;
  launch_cuda_lines({"cuda_lines", &problem}, plan, buffers);
  emulator::descending = false;
  found = *static_cast<const HalfScales *>(workspace.data());
  if (!end_bulk_stores())
    return "a block ended before its copies";
  return workspace.is_whole() ? emulator::fault : "the workspace was overrun";
}

} // namespace convx
