// Launches the kernels of one call, for one operand format: measure_kernel (scaled fp16 only),
// then, for each batch of images whose lines fit in the workspace, prepare_kernel and lines_kernel.
// The filters are packed with the first batch. Split-K slices are added at the end.
#pragma once

#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "engines/cuda/lines/lines_kernel.cuh"
#include "engines/cuda/lines/lines_launch.h"
#include "engines/cuda/lines/prepare_kernel.cuh"
#include "kernels/measure_halves.cuh"
#include "kernels/sum_partials.cuh"

namespace convx {

template <TensorMath kMath, int kColumns, Pace kPace>
void start_multiplying(const LaunchSite& site, const WindowShape& shape, const WindowParams& params,
                       const WindowMaps& maps) {
  const dim3 grid(static_cast<unsigned>(std::min(params.tiles, shape.blocks)));
  launch_early<lines_kernel<kMath, kColumns, kPace>>(site, grid, kLinesThreads, shape.shared_bytes,
                                                     params, maps);
}

template <TensorMath kMath>
void multiply_lines(const LaunchSite& site, const WindowShape& shape, const WindowParams& params,
                    const WindowMaps& maps) {
  launch_listed<window_columns<kMath>()>(site, shape.columns, [&]<int kColumns>() {
    if constexpr (may_walk(kMath) && kColumns == kWalkColumns) {
      if constexpr (may_carry(kMath)) {
        if (params.carries) {
          return start_multiplying<kMath, kColumns, Pace::kCarry>(site, shape, params, maps);
        }
      }
      if (shape.walks()) {
        return start_multiplying<kMath, kColumns, Pace::kWalk>(site, shape, params, maps);
      }
    }
    start_multiplying<kMath, kColumns, Pace::kTiles>(site, shape, params, maps);
  });
}

// The maps of the tensors that TMA reads or stores.
template <TensorMath kMath>
WindowMaps map_tensors(const LaunchSite& site, const WindowShape& shape, const WindowParams& p) {
  WindowMaps maps{};
  if constexpr (may_box(kMath)) {
    constexpr int64_t kElement = 2;
    if (p.box_columns > 0 && p.wide_channels) {
      maps.source = make_tensor_map(
          site,
          {.base = p.source,
           .extent = {int64_t{p.groups} * p.group_sources, p.source_width, p.source_height,
                      p.images},
           .stride_bytes = {kElement * p.source_w, kElement * p.source_h, kElement * p.source_n},
           .box = {p.chunk_channels, p.box_columns, p.box_rows, 1},
           .step = {1, p.source_step_w, p.box_rows > 1 ? p.source_step_h : 1, 1},
           .swizzle_bytes = p.lane_bytes});
    }
    if (p.boxed_target) {
      maps.target = make_tensor_map(
          site,
          {.base = p.target,
           .extent = {int64_t{p.groups} * p.group_targets, p.target_width, p.target_height,
                      p.images},
           .stride_bytes = {kElement * p.target_w, kElement * p.target_h, kElement * p.target_n},
           .box = {kWindowFilters, shape.columns, 1, 1},
           .step = {1, 1, 1, 1},
           .swizzle_bytes = kBoxedFilterBytes});
    }
  }
  return maps;
}

template <TensorMath kMath>
void launch_lines(const LaunchSite& site, const WindowShape& shape, const WindowParams& whole) {
  using Element = typename TensorTypes<kMath>::Element;
  WindowParams params = whole;
  if constexpr (is_half(kMath)) measure(site, params);
  const int per_pixel_tile = params.tiles / static_cast<int>(shape.pixel_tiles);
  for (int first = 0; first < whole.images; first += shape.images) {
    params.images = std::min(shape.images, whole.images - first);
    params.tiles = static_cast<int>(count_pixel_tiles(shape, params.images)) * per_pixel_tile;
    prepare<kMath>(site, shape, params, first == 0);
    multiply_lines<kMath>(site, shape, params, map_tensors<kMath>(site, shape, params));
    params.source = static_cast<const Element*>(params.source) + params.images * params.source_n;
    params.target = static_cast<Element*>(params.target) + params.images * params.target_n;
  }
  if (shape.splits > 1) sum_partials<Element>(site, whole);
}

}  // namespace convx
