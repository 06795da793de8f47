// cuda_bands, launch and kernel, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_bands.h"
#include "engines/cuda/depthwise/bands_kernel.cu"

namespace convx {

const char* emulate_bands(const ConvProblem& problem, const Plan& plan, const Buffers& buffers) {
  emulator::fault = nullptr;
  launch_cuda_bands({"cuda_bands", &problem}, plan, buffers);
  return emulator::fault;
}

}  // namespace convx
