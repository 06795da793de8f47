// Launches the kernels of a phase: filter packing, convolution, and the sum of split-K slices.
#pragma once

#include "engines/cuda_mma/mma_kernel.cuh"
#include "engines/cuda_mma/mma_passes.h"
#include "engines/cuda_pixel_tiles/pack_pixel_filters.cuh"
#include "engines/sum_partials.cuh"

namespace convx {

template <int kFilters_, int kBlocks_, bool kFolded_ = false>
struct MmaTileSize {
  static constexpr int kFilters = kFilters_, kBlocks = kBlocks_;
  static constexpr bool kFolded = kFolded_;
};

template <TensorMath kMath, typename... Sizes>
void launch_mma(const LaunchSite& site, const PixelShape& shape, const PixelParams& params) {
  using Element = typename TensorTypes<kMath>::Element;
  if (shape.chunks > 0) {  // otherwise no tap reaches these pixels, and the target is zero
    pack_pixel_filters<kMath, Element, FilterOrder::kFragments>(site, shape, params);
  }
  bool launched = false;
  const auto try_size = [&]<typename Size>(Size) {
    if (shape.filters != Size::kFilters || shape.blocks != Size::kBlocks ||
        shape.folded != Size::kFolded) {
      return;
    }
    launch_kernel<pixel_mma_kernel<kMath, Size::kBlocks, Size::kFilters, Size::kFolded>>(
        site, dim3(static_cast<unsigned>(shape.grid)), kMmaThreads, shape.shared_bytes, params);
    launched = true;
  };
  (try_size(Sizes{}), ...);
  if (!launched) throw_launch_error(site, "choosing a kernel", "no such tile");
  if (shape.splits > 1) sum_partials<Element>(site, params);
}

}  // namespace convx
