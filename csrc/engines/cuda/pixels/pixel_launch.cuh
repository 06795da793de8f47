// Launches the kernels of cuda_pixels for one phase: scales of scaled fp16, filter packing,
// convolution, and the sum of split-K slices. pixels_launch.cu and pixels_16bit.cu instantiate the
// template for each operand format.
#pragma once

#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "engines/cuda/pixels/pack_pixel_filters.cuh"
#include "engines/cuda/pixels/pixel_wgmma.cuh"
#include "kernels/around_mma.h"

namespace convx {

template <TensorMath kMath>
void launch_pixels(const LaunchSite& site, const PixelShape& shape, const PixelParams& params) {
  if constexpr (is_half(kMath)) measure(site, params);
  pack_pixel_filters<kMath, FilterOrder::kSwizzled>(site, shape, params);
  launch_listed<wgmma_tiles<kMath>()>(site, shape.tile(), [&]<PixelTileSize kTile>() {
    launch_early<
        pixel_wgmma_kernel<kMath, kTile.blocks, kTile.filters, kTile.folded, kTile.paired>>(
        site, shape.grid, kPixelThreads, shape.shared_bytes, params);
  });
  if (shape.splits > 1) sum_partials(site, params, shape.splits);
}

}  // namespace convx
