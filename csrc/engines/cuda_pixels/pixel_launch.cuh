// Launches the kernels of a phase: scales of scaled fp16, filter packing, convolution, and the sum
// of split-K slices.
#pragma once

#include "engines/cuda_pixel_tiles/pack_pixel_filters.cuh"
#include "engines/cuda_pixels/pixel_passes.h"
#include "engines/cuda_pixels/pixel_wgmma.cuh"
#include "engines/measure_halves.cuh"
#include "engines/sum_partials.cuh"

namespace convx {

template <int kFilters_, int kBlocks_, bool kFolded_ = false, bool kPaired_ = false>
struct PixelTileSize {
  static constexpr int kFilters = kFilters_, kBlocks = kBlocks_;
  static constexpr bool kFolded = kFolded_, kPaired = kPaired_;
};

template <TensorMath kMath, typename... Sizes>
void launch_pixels(const LaunchSite& site, const PixelShape& shape, const PixelParams& params) {
  using Element = typename TensorTypes<kMath>::Element;
  if constexpr (is_half(kMath)) measure(site, params);
  pack_pixel_filters<kMath, Element, FilterOrder::kSwizzled>(site, shape, params);
  bool launched = false;
  const auto try_size = [&]<typename Size>(Size) {
    if (shape.filters != Size::kFilters || shape.blocks != Size::kBlocks ||
        shape.folded != Size::kFolded || shape.paired != Size::kPaired) {
      return;
    }
    launch_early<
        pixel_wgmma_kernel<kMath, Size::kBlocks, Size::kFilters, Size::kFolded, Size::kPaired>>(
        site, dim3(static_cast<unsigned>(shape.grid)), kPixelThreads, shape.shared_bytes, params);
    launched = true;
  };
  (try_size(Sizes{}), ...);
  if (!launched) throw_launch_error(site, "choosing a kernel", "no such tile");
  if (shape.splits > 1) sum_partials<Element>(site, params);
}

}  // namespace convx
