// The depthwise kernels themselves, run on the host.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_depthwise.h"
#include "engines/cuda_depthwise/channels_last_kernel.cuh"
#include "engines/cuda_depthwise/plane_kernel.cuh"

namespace convx {
namespace {

template <typename T>
void run_kernel(const DepthwiseFit& fit, const PlaneParams& params) {
  if constexpr (sizeof(T) == 4) {
    if (fit.wide) return plane_kernel<T, 8>(params);
  }
  plane_kernel<T, 4>(params);
}
template <typename T>
void run_kernel(const DepthwiseFit&, const ChannelsLastParams& params) {
  channels_last_kernel<T>(params);
}

template <typename Params>
bool run_grid(DType dtype, const DepthwiseFit& fit, const Params& params) {
  return emulator::run_grid(dtype, fit.blocks, kDepthwiseThreads, fit.shared_bytes,
                            [&](auto element) { run_kernel<decltype(element)>(fit, params); });
}

}  // namespace

bool emulate_depthwise(const ConvProblem& problem, const DepthwiseFit& fit,
                       const Buffers& buffers) {
  return fit.layout == DepthwiseLayout::kPlanes
             ? run_grid(problem.dtype, fit, make_plane_params(problem, fit, buffers))
             : run_grid(problem.dtype, fit, make_channels_last_params(problem, fit, buffers));
}

}  // namespace convx
