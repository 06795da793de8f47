// Launches the kernels of cuda_pixels for one phase: scales of scaled fp16, filter packing,
// convolution, and the sum of split-K slices.
#pragma once

#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "engines/cuda/pixels/pack_pixel_filters.cuh"
#include "engines/cuda/pixels/pixel_launch.h"
#include "engines/cuda/pixels/pixel_wgmma.cuh"
#include "kernels/measure_halves.cuh"
#include "kernels/sum_partials.cuh"

namespace convx {

template <TensorMath kMath>
void launch_pixels(const LaunchSite& site, const PixelShape& shape, const PixelParams& params) {
  using Element = typename TensorTypes<kMath>::Element;
  if constexpr (is_half(kMath)) measure(site, params);
  pack_pixel_filters<kMath, Element, FilterOrder::kSwizzled>(site, shape, params);
  launch_listed<wgmma_tiles<kMath>()>(site, shape.tile(), [&]<PixelTileSize kTile>() {
    launch_early<
        pixel_wgmma_kernel<kMath, kTile.blocks, kTile.filters, kTile.folded, kTile.paired>>(
        site, dim3(static_cast<unsigned>(shape.grid)), kPixelThreads, shape.shared_bytes, params);
  });
  if (shape.splits > 1) sum_partials<Element>(site, params);
}

}  // namespace convx
