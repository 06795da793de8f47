// Launches the weight gradients of all kernels but that of weight_grad_pixels.cu.
#include <type_traits>

#include "engines/cuda/direct/weight_grad_narrow.cuh"
#include "engines/cuda/direct/weight_grad_wide.cuh"

namespace convx {

void launch_weight_grad_tiles(const LaunchSite& site, const WeightGradFit& fit,
                              const Buffers& buffers) {
  visit_device_type(site.problem->dtype, [&]<typename T>(T) {
    launch_weight_grad<T>(
        site, fit, buffers,
        [&]<WeightGradConfig kConfig>(const WeightGradParams& params, Grid blocks) {
          if constexpr (kConfig.kernel == WeightGradKernel::kNarrow) {
            launch_kernel<weight_grad_narrow_kernel<T, kConfig.filters, kConfig.columns>>(
                site, blocks, kNarrowThreads, 0, params);
          } else if constexpr (kConfig.kernel == WeightGradKernel::kWide &&
                               (!kConfig.float32_only || std::is_same_v<T, float>)) {
            using Tile = WideTile<kConfig.filters / 32, kConfig.columns / 64>;
            constexpr int kBytes = Tile::template kSharedBytes<accumulate_t<T>>;
            launch_kernel<weight_grad_wide_kernel<T, Tile>>(site, blocks, Tile::kThreads, kBytes,
                                                            params);
          } else {
            throw_launch_error(site, "choosing a kernel", "no such tile");
          }
        });
  });
}

}  // namespace convx
