#include "cuda/launch.h"
#include "engines/cuda/grouped/grouped_launch.h"
#include "engines/cuda/grouped/grouped_mma_kernel.cuh"

namespace convx {
namespace {

template <typename T, int kCells>
void launch_cells(const LaunchSite& site, const GroupedMmaFit& fit,
                  const GroupedMmaParams& params) {
  const dim3 grid(static_cast<unsigned>(fit.blocks));
  const auto bytes = static_cast<size_t>(fit.shared_bytes);
  constexpr int kThreads = kGroupedMmaThreads;
  if (fit.filters == 4) {
    launch_kernel<grouped_mma_kernel<T, 4, kCells>>(site, grid, kThreads, bytes, params);
  } else if (fit.filters == 8) {
    launch_kernel<grouped_mma_kernel<T, 8, kCells>>(site, grid, kThreads, bytes, params);
  } else {
    launch_kernel<grouped_mma_kernel<T, 16, kCells>>(site, grid, kThreads, bytes, params);
  }
}

template <typename T>
void launch(const LaunchSite& site, const GroupedMmaFit& fit, const GroupedMmaParams& params) {
  if (fit.cells == kManyCells) {
    launch_cells<T, kManyCells>(site, fit, params);
  } else {
    launch_cells<T, kFewCells>(site, fit, params);
  }
}

}  // namespace

void launch_grouped_mma(const LaunchSite& site, const GroupedMmaFit& fit,
                        const GroupedMmaParams& params) {
  if (site.problem->dtype == DType::kFloat16) {
    launch<__half>(site, fit, params);
  } else {
    launch<__nv_bfloat16>(site, fit, params);
  }
}

}  // namespace convx
