// The depthwise kernels themselves, run on the host.
#include "emulated_cuda/run_grid.h"
#include "emulated_cuda/warps.h"
//
#include <iterator>
#include <utility>

#include "emulate_depthwise.h"
#include "engines/cuda/depthwise/channels_last_kernel.cuh"
#include "engines/cuda/depthwise/pixel_strip_kernel.cuh"
#include "engines/cuda/depthwise/pixel_weight_grad_kernel.cuh"
#include "engines/cuda/depthwise/pixel_weight_grad_maps.h"
#include "engines/cuda/depthwise/plane_kernel.cuh"
#include "engines/cuda/depthwise/row_weight_grad_kernel.cuh"
#include "engines/cuda/depthwise/strip_kernel.cuh"
#include "engines/cuda/depthwise/strip_weight_grad_kernel.cuh"
#include "engines/cuda/depthwise/weight_grad_sums_kernel.cuh"

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
void run_kernel(const DepthwiseFit& fit, const PixelStripParams& params) {
  const auto run_if_fitted = [&]<int kShape>() {
    constexpr PixelStripShape shape = kPixelStripShapes[kShape];
    if (fit.pixel_strip.shape == kShape) pixel_strip_kernel<T, shape.taps, shape.stride>(params);
  };
  [&]<int... kShapes>(std::integer_sequence<int, kShapes...>) {
    (run_if_fitted.template operator()<kShapes>(), ...);
  }(std::make_integer_sequence<int, std::size(kPixelStripShapes)>{});
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
bool run_grid(DType dtype, const DepthwiseFit& fit, int64_t blocks, const Params& params,
              int64_t shared_bytes) {
  return emulator::run_grid(dtype, blocks, kDepthwiseThreads, shared_bytes,
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

bool run_rows(const ConvProblem& problem, const RowWeightGradFit& fit,
              const RowWeightGradParams& params) {
  return emulator::run_grid(
      problem.dtype, fit.blocks, fit.threads, fit.shared_bytes, [&](auto element) {
        const auto run_if_fitted = [&]<int kCore>() {
          constexpr RowGradCore core = kRowGradCores[kCore];
          if (fit.core != kCore) return;
          row_weight_grad_kernel<decltype(element), core.taps, core.stride>(params);
        };
        [&]<int... kCores>(std::integer_sequence<int, kCores...>) {
          (run_if_fitted.template operator()<kCores>(), ...);
        }(std::make_integer_sequence<int, std::size(kRowGradCores)>{});
      });
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
  const auto run = [&](int64_t blocks, const auto& params) {
    return run_grid(problem.dtype, fit, blocks, params, fit.shared_bytes);
  };
  if (fit.strip.shape >= 0) {
    const StripFit strips = make_strip_launch(problem, fit, buffers);
    return run(strips.blocks, strips);
  }
  if (const auto strips = make_pixel_strip_params(problem, fit, buffers)) {
    const int taps = kPixelStripShapes[fit.pixel_strip.shape].taps;
    return run_grid(problem.dtype, fit, fit.pixel_strip.blocks, *strips,
                    pixel_strip_shared_bytes(taps));
  }
  return fit.layout == DepthwiseLayout::kPlanes
             ? run(fit.blocks, make_plane_params(problem, fit, buffers))
             : run(fit.blocks, make_channels_last_params(problem, fit, buffers));
}

bool emulate_weight_grad(const ConvProblem& problem, const DepthwiseWeightGradFit& grad,
                         const Buffers& buffers) {
  const auto run = [&](const auto& fit) {
    int64_t parts = fit.parts;
    bool whole = true, in_rows = false;
    if constexpr (requires { fit.rows; }) {
      if (const auto rows = make_row_weight_grad_params(problem, fit.rows, buffers)) {
        whole = run_rows(problem, fit.rows, *rows);
        parts = fit.rows.count_partials();
        in_rows = true;
      }
    }
    if (!in_rows) whole = run_parts(problem, fit, buffers);
    if (parts == 0) return whole;
    const WeightGradSums sums = make_weight_grad_sums(problem, parts, buffers);
    return emulator::run_grid(
               problem.dtype, sums.count_blocks(), kWeightGradSumsThreads, kWeightGradSumsBytes,
               [&](auto element) { weight_grad_sums_kernel<decltype(element)>(sums); }) &&
           whole;
  };
  return std::visit(run, grad);
}

}  // namespace convx
