// The depthwise kernels themselves, run on the host.
#include "emulated_cuda/run_grid.h"
#include "emulated_cuda/warps.h"
//
#include <iterator>
#include <utility>

#include "emulate_depthwise.h"
#include "engines/cuda_depthwise/channels_last_kernel.cuh"
#include "engines/cuda_depthwise/pixel_strip_kernel.cuh"
#include "engines/cuda_depthwise/pixel_weight_grad_kernel.cuh"
#include "engines/cuda_depthwise/pixel_weight_grad_maps.h"
#include "engines/cuda_depthwise/plane_kernel.cuh"
#include "engines/cuda_depthwise/strip_kernel.cuh"
#include "engines/cuda_depthwise/strip_weight_grad_kernel.cuh"
#include "engines/cuda_depthwise/weight_grad_sums_kernel.cuh"

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

template <typename T>
void run_kernel(const DepthwiseFit&, const PixelStripParams& params) {
  params.t.row.source_step == 1 ? pixel_strip_kernel<T, 1>(params)
                                : pixel_strip_kernel<T, 2>(params);
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

template <typename Params>
bool run_grid(DType dtype, const DepthwiseFit& fit, int64_t blocks, const Params& params) {
  return emulator::run_grid(dtype, blocks, kDepthwiseThreads, fit.shared_bytes,
                            [&](auto element) { run_kernel<decltype(element)>(fit, params); });
}

template <typename T, int kIndex, int kColumns, bool kAligned>
void run_weight_grad_if_fitted(const StripWeightGradFit& fit) {
  if constexpr (has_weight_grad_kernel(kStripShapes[kIndex], kColumns, kAligned)) {
    if (fit.shape == kIndex && fit.columns == kColumns && fit.aligned == kAligned) {
      strip_weight_grad_kernel<T, kIndex, kColumns, kAligned>(fit.params);
    }
  }
}
template <typename T, int... kIndices>
void run_weight_grad(const StripWeightGradFit& fit, std::integer_sequence<int, kIndices...>) {
  (run_weight_grad_if_fitted<T, kIndices, 4, true>(fit), ...);
  (run_weight_grad_if_fitted<T, kIndices, 4, false>(fit), ...);
  (run_weight_grad_if_fitted<T, kIndices, 2, true>(fit), ...);
  (run_weight_grad_if_fitted<T, kIndices, 2, false>(fit), ...);
  (run_weight_grad_if_fitted<T, kIndices, 1, true>(fit), ...);
}

bool run_parts(const ConvProblem& problem, const StripWeightGradFit& fit, const Buffers& buffers) {
  const StripWeightGradFit made = make_strip_weight_grad(problem, fit, buffers);
  constexpr auto kIndices = std::make_integer_sequence<int, kStripShapeCount>{};
  return emulator::run_grid(
      problem.dtype, made.blocks, kDepthwiseThreads, made.shared_bytes,
      [&](auto element) { run_weight_grad<decltype(element)>(made, kIndices); });
}

template <typename T, int... kCores>
void run_weight_grad(const PixelWeightGradFit& fit, const PixelWeightGradParams& params,
                     const PixelGradMaps& maps, std::integer_sequence<int, kCores...>) {
  const auto run_if_fitted = [&]<int kCore>() {
    constexpr PixelGradCore core = kPixelGradCores[kCore];
    if (fit.core == kCore) pixel_weight_grad_kernel<T, core.taps, core.stride>(params, maps);
  };
  (run_if_fitted.template operator()<kCores>(), ...);
}

bool run_parts(const ConvProblem& problem, const PixelWeightGradFit& fit, const Buffers& buffers) {
  const PixelWeightGradParams params = make_pixel_weight_grad_params(problem, fit, buffers);
  emulator::use_shared_memory(emulated_shared_memory, 0);
  emulator::fault = nullptr;
  const PixelGradMaps maps = make_pixel_grad_maps({}, params, size_of(problem.dtype));
  constexpr auto kCores = std::make_integer_sequence<int, std::size(kPixelGradCores)>{};
  const bool whole = emulator::run_grid(
      problem.dtype, fit.blocks, fit.threads, fit.shared_bytes,
      [&](auto element) { run_weight_grad<decltype(element)>(fit, params, maps, kCores); });
  return whole && emulator::fault == nullptr;
}

}  // namespace

bool emulate_depthwise(const ConvProblem& problem, const DepthwiseFit& fit,
                       const Buffers& buffers) {
  if (fit.strip.shape >= 0) {
    const StripFit strips = make_strip_launch(problem, fit, buffers);
    return run_grid(problem.dtype, fit, strips.blocks, strips);
  }
  if (const auto strips = make_pixel_strip_params(problem, fit, buffers)) {
    return run_grid(problem.dtype, fit, fit.pixel_strip.blocks, *strips);
  }
  return fit.layout == DepthwiseLayout::kPlanes
             ? run_grid(problem.dtype, fit, fit.blocks, make_plane_params(problem, fit, buffers))
             : run_grid(problem.dtype, fit, fit.blocks,
                        make_channels_last_params(problem, fit, buffers));
}

bool emulate_weight_grad(const ConvProblem& problem, const DepthwiseWeightGradFit& grad,
                         const Buffers& buffers) {
  const auto run = [&](const auto& fit) {
    const bool whole = run_parts(problem, fit, buffers);
    const WeightGradSums sums = make_weight_grad_sums(problem, fit.parts, buffers);
    return emulator::run_grid(
               problem.dtype, sums.count_blocks(), kWeightGradSumsThreads, kWeightGradSumsBytes,
               [&](auto element) { weight_grad_sums_kernel<decltype(element)>(sums); }) &&
           whole;
  };
  return std::visit(run, grad);
}

}  // namespace convx
