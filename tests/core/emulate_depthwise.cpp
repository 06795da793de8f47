// The depthwise kernels themselves, run on the host.
#include "emulated_cuda/emulator.h"
//
#include <utility>

#include "emulate_depthwise.h"
#include "engines/cuda_depthwise/channels_last_kernel.cuh"
#include "engines/cuda_depthwise/plane_kernel.cuh"
#include "engines/cuda_depthwise/strip_kernel.cuh"

namespace convx {

// What a kernel declares as its shared memory: the largest a block can have,
// and a margin behind it.
constexpr int64_t kSharedBytes = 232448;
constexpr int64_t kMargin = 4096;
alignas(16) unsigned char shared_bytes[kSharedBytes + kMargin];

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

template <typename T, int kIndex, int kColumns>
void run_if_fitted(const StripFit& fit, const StripParams& params) {
  if constexpr (has_strip_kernel(kStripShapes[kIndex], sizeof(T), kColumns)) {
    if (fit.shape == kIndex && fit.columns == kColumns) strip_kernel<T, kIndex, kColumns>(params);
  }
}
template <typename T, int... kIndices>
void run_strips(const StripFit& fit, const StripParams& params,
                std::integer_sequence<int, kIndices...>) {
  (run_if_fitted<T, kIndices, 8>(fit, params), ...);
  (run_if_fitted<T, kIndices, 4>(fit, params), ...);
  (run_if_fitted<T, kIndices, 2>(fit, params), ...);
}
template <typename T>
void run_kernel(const DepthwiseFit& fit, const StripParams& params) {
  run_strips<T>(fit.strip, params, std::make_integer_sequence<int, kStripShapeCount>{});
}

// False if a block wrote behind its shared memory.
template <typename Params>
bool run_grid(DType dtype, const DepthwiseFit& fit, int64_t blocks, const Params& params) {
  constexpr unsigned char kPoison = 0xff;  // a NaN in every type
  std::vector<emulator::Fiber> fibers(kDepthwiseThreads);
  for (int64_t block = 0; block < blocks; ++block) {
    blockIdx.x = static_cast<int>(block);
    std::memset(shared_bytes, kPoison, static_cast<size_t>(fit.shared_bytes) + kMargin);
    emulator::run_block(fibers, [&] {
      if (dtype == DType::kFloat32) return run_kernel<float>(fit, params);
      if (dtype == DType::kFloat16) return run_kernel<__half>(fit, params);
      run_kernel<__nv_bfloat16>(fit, params);
    });
    const unsigned char* behind = shared_bytes + fit.shared_bytes;
    const unsigned char* end = behind + kMargin;
    if (std::any_of(behind, end, [](auto b) { return b != kPoison; })) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool emulate_depthwise(const ConvProblem& problem, const DepthwiseFit& fit,
                       const Buffers& buffers) {
  if (can_launch_strips(problem, fit, buffers)) {
    const StripParams params = make_strip_params(problem, fit, buffers);
    return run_grid(problem.dtype, fit, fit.strip.blocks, params);
  }
  return fit.layout == DepthwiseLayout::kPlanes
             ? run_grid(problem.dtype, fit, fit.blocks, make_plane_params(problem, fit, buffers))
             : run_grid(problem.dtype, fit, fit.blocks,
                        make_channels_last_params(problem, fit, buffers));
}

}  // namespace convx
