#include "cuda/launch.h"
#include "engines/cuda/depthwise/channels_last_kernel.cuh"
#include "engines/cuda/depthwise/depthwise_launch.h"

namespace convx {
namespace {

template <typename T>
void launch_channels_last(const LaunchSite& site, const DepthwiseFit& fit,
                          const ChannelsLastParams& params) {
  launch_kernel<channels_last_kernel<T>>(site, dim3(static_cast<unsigned>(fit.blocks)),
                                         kDepthwiseThreads, static_cast<size_t>(fit.shared_bytes),
                                         params);
}

}  // namespace

void launch_depthwise_channels_last(const LaunchSite& site, const DepthwiseFit& fit,
                                    const Buffers& buffers) {
  const ChannelsLastParams params = make_channels_last_params(*site.problem, fit, buffers);
  switch (site.problem->dtype) {
    case DType::kFloat32:
      return launch_channels_last<float>(site, fit, params);
    case DType::kFloat16:
      return launch_channels_last<__half>(site, fit, params);
    case DType::kBFloat16:
      return launch_channels_last<__nv_bfloat16>(site, fit, params);
    case DType::kFloat64:
      break;
  }
  throw_launch_error(site, "launching the pixel kernel", "no such type");
}

}  // namespace convx
