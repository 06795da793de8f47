// cuda_grouped, launch and kernels, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_grouped.h"
#include "engines/cuda/grouped/grouped_launch.cu"
#include "engines/cuda/grouped/grouped_mma_kernel.cu"

namespace convx {

const char* emulate_grouped(const ConvProblem& problem, const Plan& plan, const Buffers& buffers) {
  emulator::fault = nullptr;
  launch_cuda_grouped({"cuda_grouped", &problem}, plan, buffers);
  return emulator::fault;
}

}  // namespace convx
