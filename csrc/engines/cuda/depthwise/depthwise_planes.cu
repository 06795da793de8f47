#include "cuda/launch.h"
#include "engines/cuda/depthwise/depthwise_launch.h"
#include "engines/cuda/depthwise/plane_kernel.cuh"

namespace convx {
namespace {

template <typename T>
void launch_planes(const LaunchSite& site, const DepthwiseFit& fit, const PlaneParams& params) {
  const dim3 grid(static_cast<unsigned>(fit.blocks));
  const auto bytes = static_cast<size_t>(fit.shared_bytes);
  if constexpr (sizeof(T) == 4) {
    if (fit.wide) {
      launch_kernel<plane_kernel<T, 8>>(site, grid, kDepthwiseThreads, bytes, params);
      return;
    }
  }
  launch_kernel<plane_kernel<T, 4>>(site, grid, kDepthwiseThreads, bytes, params);
}

}  // namespace

void launch_depthwise_planes(const LaunchSite& site, const DepthwiseFit& fit,
                             const Buffers& buffers) {
  const PlaneParams params = make_plane_params(*site.problem, fit, buffers);
  switch (site.problem->dtype) {
    case DType::kFloat32:
      return launch_planes<float>(site, fit, params);
    case DType::kFloat16:
      return launch_planes<__half>(site, fit, params);
    case DType::kBFloat16:
      return launch_planes<__nv_bfloat16>(site, fit, params);
    case DType::kFloat64:
      break;
  }
  throw_launch_error(site, "launching the plane kernel", "no such type");
}

}  // namespace convx
