#include <iterator>
#include <utility>

#include "cuda/launch.h"
#include "engines/cuda/depthwise/depthwise_launch.h"
#include "engines/cuda/depthwise/pixel_weight_grad_kernel.cuh"
#include "engines/cuda/depthwise/pixel_weight_grad_maps.h"

namespace convx {

int64_t launch_weight_grad_parts(const LaunchSite& site, const PixelWeightGradFit& fit,
                                 const Buffers& buffers) {
  if (const auto rows = make_row_weight_grad_params(*site.problem, fit.rows, buffers)) {
    launch_row_weight_grad(site, fit.rows, *rows);
    return fit.rows.count_partials();
  }
  const PixelWeightGradParams params = make_pixel_weight_grad_params(*site.problem, fit, buffers);
  const PixelGradMaps maps = make_pixel_grad_maps(site, params, size_of(site.problem->dtype));
  bool launched = false;
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto launch_if_fitted = [&]<int kCore>() {
      constexpr PixelGradCore core = kPixelGradCores[kCore];
      if (fit.core != kCore) return;
      launch_kernel<pixel_weight_grad_kernel<T, core.taps, core.stride>>(
          site, dim3(static_cast<unsigned>(fit.blocks)), fit.threads,
          static_cast<size_t>(fit.shared_bytes), params, maps);
      launched = true;
    };
    if constexpr (sizeof(T) <= 4) {
      [&]<int... kCores>(std::integer_sequence<int, kCores...>) {
        (launch_if_fitted.template operator()<kCores>(), ...);
      }(std::make_integer_sequence<int, std::size(kPixelGradCores)>{});
    }
  });
  if (!launched) throw_launch_error(site, "launching the weight gradient", "no such kernel");
  return fit.parts;
}

}  // namespace convx
