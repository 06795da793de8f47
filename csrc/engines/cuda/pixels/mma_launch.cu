// Launches cuda_mma, for one phase after the other: filter packing, convolution, and the sum of
// split-K slices.
#include <iterator>

#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pixels/mma_kernel.cuh"
#include "engines/cuda/pixels/pack_pixel_filters.cuh"
#include "kernels/around_mma.h"

namespace convx {
namespace {

// The tiles of cuda_mma that this build has kernels for.
template <TensorMath kMath>
constexpr const auto& launched_mma_tiles() {
#if defined(CONVX_SM90A) && defined(__CUDA_ARCH_LIST__)
  constexpr int kArchs[] = {__CUDA_ARCH_LIST__};
  if constexpr (std::size(kArchs) == 1 && kArchs[0] == 900) {
    return kMmaTilesBesideWgmma;
  } else {
    return mma_tiles<kMath>();
  }
#else
  return mma_tiles<kMath>();
#endif
}

template <TensorMath kMath>
void launch_mma(const LaunchSite& site, const PixelShape& shape, const PixelParams& params) {
  if (shape.chunks > 0) {  // otherwise no tap reaches these pixels, and the target is zero
    pack_pixel_filters<kMath, FilterOrder::kFragments>(site, shape, params);
  }
  launch_listed<launched_mma_tiles<kMath>()>(site, shape.tile(), [&]<PixelTileSize kTile>() {
    launch_kernel<pixel_mma_kernel<kMath, kTile.blocks, kTile.filters, kTile.folded>>(
        site, shape.grid, kMmaThreads, shape.shared_bytes, params);
  });
  if (shape.splits > 1) sum_partials(site, params, shape.splits);
}

}  // namespace

void launch_cuda_mma(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  for (const PixelFit& phase : geometry_of<MmaPlan>(plan).phases) {
    visit_math(phase.shape.math, [&]<TensorMath kMath>() {
      if constexpr (!is_half(kMath)) {  // cuda_mma does not use scaled fp16
        launch_mma<kMath>(site, phase.shape, make_pixel_params(*site.problem, phase, buffers));
      }
    });
  }
}

}  // namespace convx
