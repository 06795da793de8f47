// The depthwise kernels themselves, run on the host.
#include "emulated_cuda/emulator.h"
//
#include <utility>

#include "emulate_depthwise.h"
#include "engines/cuda_depthwise/channels_last_kernel.cuh"
#include "engines/cuda_depthwise/plane_kernel.cuh"
#include "engines/cuda_depthwise/strip_kernel.cuh"
#include "engines/cuda_depthwise/strip_weight_grad_kernel.cuh"

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
void run_if_fitted(const StripFit& fit) {
  if constexpr (has_strip_kernel(kStripShapes[kIndex], sizeof(T), kColumns)) {
    if (fit.shape == kIndex && fit.columns == kColumns) {
      strip_kernel<T, kIndex, kColumns>(fit.params);
    }
  }
}
template <typename T, int... kIndices>
void run_strips(const StripFit& fit, std::integer_sequence<int, kIndices...>) {
  (run_if_fitted<T, kIndices, 8>(fit), ...);
  (run_if_fitted<T, kIndices, 4>(fit), ...);
  (run_if_fitted<T, kIndices, 2>(fit), ...);
  (run_if_fitted<T, kIndices, 1>(fit), ...);
}
template <typename T>
void run_kernel(const DepthwiseFit&, const StripFit& fit) {
  run_strips<T>(fit, std::make_integer_sequence<int, kStripShapeCount>{});
}

// What run_blocks calls in every thread, by the type of the tensors.
template <typename Visit>
void visit_type(DType dtype, const Visit& visit) {
  if (dtype == DType::kFloat32) return visit(float{});
  if (dtype == DType::kFloat16) return visit(__half{});
  visit(__nv_bfloat16{});
}

// False if a block wrote behind its shared memory.
template <typename Visit>
bool run_blocks(DType dtype, int64_t blocks, int64_t bytes, const Visit& visit) {
  constexpr unsigned char kPoison = 0xff;  // a NaN in every type
  std::vector<emulator::Fiber> fibers(kDepthwiseThreads);
  for (int64_t block = 0; block < blocks; ++block) {
    blockIdx.x = static_cast<int>(block);
    std::memset(shared_bytes, kPoison, static_cast<size_t>(bytes) + kMargin);
    emulator::run_block(fibers, [&] { visit_type(dtype, visit); });
    const unsigned char* behind = shared_bytes + bytes;
    const unsigned char* end = behind + kMargin;
    if (std::any_of(behind, end, [](auto b) { return b != kPoison; })) return false;
  }
  return true;
}

template <typename Params>
bool run_grid(DType dtype, const DepthwiseFit& fit, int64_t blocks, const Params& params) {
  return run_blocks(dtype, blocks, fit.shared_bytes,
                    [&](auto zero) { run_kernel<decltype(zero)>(fit, params); });
}

template <typename T, int kIndex, int kColumns>
void run_weight_grad_if_fitted(const StripWeightGradFit& fit) {
  if constexpr (has_weight_grad_kernel(kStripShapes[kIndex], kColumns)) {
    if (fit.shape == kIndex && fit.columns == kColumns) {
      strip_weight_grad_kernel<T, kIndex, kColumns>(fit.params);
    }
  }
}
template <typename T, int... kIndices>
void run_weight_grad(const StripWeightGradFit& fit, std::integer_sequence<int, kIndices...>) {
  (run_weight_grad_if_fitted<T, kIndices, 4>(fit), ...);
  (run_weight_grad_if_fitted<T, kIndices, 2>(fit), ...);
  (run_weight_grad_if_fitted<T, kIndices, 1>(fit), ...);
}

// In place of sum_partials.cuh, which launches.
template <typename T>
void add_parts(const WeightGradSums& sums) {
  for (int64_t i = 0; i < sums.partial_stride; ++i) {
    float sum = 0;
    for (int part = 0; part < sums.splits; ++part) {
      sum += sums.partials[i + part * sums.partial_stride];
    }
    const int64_t column = i % sums.target_width;
    const int64_t row = i / sums.target_width % sums.target_height;
    const int64_t filter = i / sums.target_width / sums.target_height;
    static_cast<T*>(
        sums.target)[filter * sums.target_c + row * sums.target_h + column * sums.target_w] =
        round_to<T>(sum);
  }
}

}  // namespace

bool emulate_depthwise(const ConvProblem& problem, const DepthwiseFit& fit,
                       const Buffers& buffers) {
  if (fit.strip.shape >= 0) {
    const StripFit strips = make_strip_launch(problem, fit, buffers);
    return run_grid(problem.dtype, fit, strips.blocks, strips);
  }
  return fit.layout == DepthwiseLayout::kPlanes
             ? run_grid(problem.dtype, fit, fit.blocks, make_plane_params(problem, fit, buffers))
             : run_grid(problem.dtype, fit, fit.blocks,
                        make_channels_last_params(problem, fit, buffers));
}

bool emulate_weight_grad(const ConvProblem& problem, const StripWeightGradFit& fit,
                         const Buffers& buffers) {
  const StripWeightGradLaunch launch = make_weight_grad_launch(problem, fit, buffers);
  constexpr auto kIndices = std::make_integer_sequence<int, kStripShapeCount>{};
  const bool whole =
      run_blocks(problem.dtype, launch.fit.blocks, launch.fit.shared_bytes,
                 [&](auto zero) { run_weight_grad<decltype(zero)>(launch.fit, kIndices); });
  visit_type(problem.dtype, [&](auto zero) { add_parts<decltype(zero)>(launch.sums); });
  return whole;
}

}  // namespace convx
