// cuda_diagonal, launch and kernel, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_diagonal.h"
#include "engines/cuda/grouped/diagonal_kernel.cu"

namespace convx {

const char* emulate_diagonal(const ConvProblem& problem, const Plan& plan, const Buffers& buffers) {
  emulator::fault = nullptr;
  launch_cuda_diagonal({"cuda_diagonal", &problem}, plan, buffers);
  return emulator::fault;
}

}  // namespace convx
