#include "cuda/launch.h"
#include "engines/cuda_depthwise/depthwise_launch.h"
#include "engines/cuda_depthwise/pixel_weight_grad_kernel.cuh"

namespace convx {

void launch_weight_grad_parts(const LaunchSite& site, const PixelWeightGradFit& fit,
                              const Buffers& buffers) {
  const PixelWeightGradParams params = make_pixel_weight_grad_params(*site.problem, fit, buffers);
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto launch = [&]<int kTaps, int kStride>() {
      launch_kernel<pixel_weight_grad_kernel<T, kTaps, kStride>>(
          site, dim3(static_cast<unsigned>(fit.blocks)), fit.threads,
          static_cast<size_t>(fit.shared_bytes), params);
    };
    const auto launch_taps = [&]<int kTaps>() {
      if (fit.kernel_taps != kTaps) return;
      params.t.column.source_step == 1 ? launch.template operator()<kTaps, 1>()
                                       : launch.template operator()<kTaps, 2>();
    };
    if constexpr (sizeof(T) <= 4) {
      launch_taps.template operator()<kPixelGradTaps[0]>();
      launch_taps.template operator()<kPixelGradTaps[1]>();
      launch_taps.template operator()<kPixelGradTaps[2]>();
    }
  });
}

}  // namespace convx
