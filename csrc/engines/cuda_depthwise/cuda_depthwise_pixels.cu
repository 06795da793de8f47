#include "cuda/launch.h"
#include "engines/cuda_depthwise/depthwise_launch.h"
#include "engines/cuda_depthwise/pixel_kernel.cuh"

namespace convx {
namespace {

template <typename T>
void launch_pixels(const LaunchSite& site, const DepthwiseFit& fit, const PixelParams& params) {
  launch_kernel<pixel_kernel<T>>(site, dim3(static_cast<unsigned>(fit.blocks)), kDepthwiseThreads,
                                 static_cast<size_t>(fit.shared_bytes), params);
}

}  // namespace

void launch_depthwise_pixels(const LaunchSite& site, const DepthwiseFit& fit,
                             const Buffers& buffers) {
  const PixelParams params = make_pixel_params(*site.problem, fit, buffers);
  switch (site.problem->dtype) {
    case DType::kFloat32:
      return launch_pixels<float>(site, fit, params);
    case DType::kFloat16:
      return launch_pixels<__half>(site, fit, params);
    case DType::kBFloat16:
      return launch_pixels<__nv_bfloat16>(site, fit, params);
    case DType::kFloat64:
      break;
  }
  throw_launch_error(site, "launching the pixel kernel", "no such type");
}

}  // namespace convx
