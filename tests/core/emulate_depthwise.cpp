// cuda_depthwise, launches and kernels, run on the host from its own source.
#include "emulated_cuda/run_grid.h"
#include "emulated_cuda/warps.h"
// Blocks without shared memory are run whole, too: strips exchange words by shuffles.
#define launch_kernel launch_lone_threads
#include "cuda/launch.h"
#undef launch_kernel
namespace convx {

template <auto kKernel, typename... Args>
void launch_kernel(const LaunchSite&, const Grid& grid, int threads, int64_t shared_bytes,
                   const Args&... args) {
  emulator::use_shared_memory(emulated_shared_memory, 0);  // boxes need multiples of 128 bytes
  if (!emulator::run_blocks(grid.x, threads, emulated_shared_memory, shared_bytes,
                            [&] { kKernel(args...); })) {
    emulator::fault = "a block wrote behind its shared memory";
  }
}

}  // namespace convx
//
#include "emulate_depthwise.h"
#include "engines/cuda/depthwise/depthwise_launch.cu"
#include "engines/cuda/depthwise/depthwise_strips.cu"
#include "engines/cuda/depthwise/pixel_weight_grad.cu"
#include "engines/cuda/depthwise/strip_weight_grad_kernel.cu"
#include "engines/cuda/depthwise/weight_grad_sums.cu"

namespace convx {

const char* emulate_depthwise(const ConvProblem& problem, const Plan& plan,
                              const Buffers& buffers) {
  emulator::fault = nullptr;
  launch_cuda_depthwise({"cuda_depthwise", &problem}, plan, buffers);
  return emulator::fault;
}

}  // namespace convx
