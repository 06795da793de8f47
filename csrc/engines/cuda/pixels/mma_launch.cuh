// Launches the kernels of cuda_mma for one phase: filter packing, convolution, and the sum of
// split-K slices.
#pragma once

#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "engines/cuda/pixels/mma_kernel.cuh"
#include "engines/cuda/pixels/pack_pixel_filters.cuh"
#include "engines/cuda/pixels/pixel_launch.h"
#include "kernels/sum_partials.cuh"

namespace convx {

template <TensorMath kMath>
void launch_mma(const LaunchSite& site, const PixelShape& shape, const PixelParams& params) {
  using Element = typename TensorTypes<kMath>::Element;
  if (shape.chunks > 0) {  // otherwise no tap reaches these pixels, and the target is zero
    pack_pixel_filters<kMath, Element, FilterOrder::kFragments>(site, shape, params);
  }
  launch_listed<mma_tiles<kMath>()>(site, shape.tile(), [&]<PixelTileSize kTile>() {
    launch_kernel<pixel_mma_kernel<kMath, kTile.blocks, kTile.filters, kTile.folded>>(
        site, dim3(static_cast<unsigned>(shape.grid)), kMmaThreads, shape.shared_bytes, params);
  });
  if (shape.splits > 1) sum_partials<Element>(site, params);
}

}  // namespace convx
