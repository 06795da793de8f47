// Packs the filters, multiplies, and adds up the parts of a split reduction.
#pragma once

#include "cuda/launch.h"
#include "engines/cuda_wgmma/wgmma_kernel.cuh"
#include "engines/cuda_wgmma/wgmma_passes.h"
#include "engines/cuda_window/window_prepare.cuh"
#include "engines/sum_partials.cuh"

namespace convx {

template <TensorMath kMath, int... kColumns>
void launch_wgmma(const LaunchSite& site, const WindowShape& shape, const WindowParams& params) {
  using Element = typename TensorTypes<kMath>::Element;
  pack_filters<kMath, Element>(site, shape, params);
  const dim3 grid(static_cast<unsigned>(shape.blocks));
  bool launched = false;
  const auto try_columns = [&]<int kThese>() {
    if (shape.columns != kThese) return;
    launch_kernel<wgmma_kernel<kMath, kThese>>(site, grid, WgmmaBlock<kMath, kThese>::kThreads,
                                               shape.shared_bytes, params);
    launched = true;
  };
  (try_columns.template operator()<kColumns>(), ...);
  if (!launched) throw_launch_error(site, "choosing a kernel", "no such window");
  if (shape.splits > 1) sum_partials<Element>(site, params);
}

}  // namespace convx
