// For as many images as the workspace has room for at a time: turns the source, packs the filters
// once, and multiplies; adds up the parts of a split reduction.
#pragma once

#include "cuda/launch.h"
#include "engines/cuda_lines/lines_kernel.cuh"
#include "engines/cuda_lines/lines_passes.h"
#include "engines/cuda_lines/prepare_kernel.cuh"
#include "engines/measure_halves.cuh"
#include "engines/sum_partials.cuh"

namespace convx {

template <TensorMath kMath, int kColumns, int... kOthers>
void multiply_lines(const LaunchSite& site, const WindowShape& shape, const WindowParams& params) {
  if (shape.columns == kColumns) {
    const dim3 grid(static_cast<unsigned>(std::min(params.tiles, shape.blocks)));
    launch_early<lines_kernel<kMath, kColumns>>(site, grid, kLinesThreads, shape.shared_bytes,
                                                params);
  } else if constexpr (sizeof...(kOthers) > 0) {
    multiply_lines<kMath, kOthers...>(site, shape, params);
  } else {
    throw_launch_error(site, "choosing a kernel", "no such window");
  }
}

template <TensorMath kMath, int... kColumns>
void launch_lines(const LaunchSite& site, const WindowShape& shape, WindowParams params) {
  using Element = typename TensorTypes<kMath>::Element;
  const WindowParams whole = params;
  if constexpr (is_half(kMath)) measure(site, params);
  const int per_pixel_tile = params.tiles / static_cast<int>(shape.pixel_tiles);
  for (int first = 0; first < whole.images; first += shape.images) {
    params.images = std::min(shape.images, whole.images - first);
    params.tiles = static_cast<int>(count_pixel_tiles(shape, params.images)) * per_pixel_tile;
    prepare<kMath>(site, shape, params, first == 0);
    multiply_lines<kMath, kColumns...>(site, shape, params);
    params.source = static_cast<const Element*>(params.source) + params.images * params.source_n;
    params.target = static_cast<Element*>(params.target) + params.images * params.target_n;
  }
  if (shape.splits > 1) sum_partials<Element>(site, whole);
}

}  // namespace convx
