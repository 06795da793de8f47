// Selects the instantiation of grouped_kernel for a fit.
#pragma once

#include "cuda/launch.h"
#include "engines/cuda/grouped/grouped_kernel.cuh"
#include "engines/cuda/grouped/grouped_launch.h"

namespace convx {

template <typename T>
void launch_grouped(const LaunchSite& site, const GroupedFit& fit, const GroupedParams& params) {
  const dim3 grid(static_cast<unsigned>(fit.blocks));
  const auto bytes = static_cast<size_t>(fit.shared_bytes);
  if (fit.window == ColumnWindow::kRows) {
    launch_kernel<grouped_kernel<T, ColumnWindow::kRows, kManyFilters>>(site, grid, fit.threads,
                                                                        bytes, params);
  } else if (fit.window == ColumnWindow::kRowsStride2) {
    launch_kernel<grouped_kernel<T, ColumnWindow::kRowsStride2, kManyFilters>>(
        site, grid, fit.threads, bytes, params);
  } else if (fit.filters == kManyFilters) {
    launch_kernel<grouped_kernel<T, ColumnWindow::kSegments, kManyFilters>>(site, grid, fit.threads,
                                                                            bytes, params);
  } else {
    launch_kernel<grouped_kernel<T, ColumnWindow::kSegments, kFewFilters>>(site, grid, fit.threads,
                                                                           bytes, params);
  }
}

}  // namespace convx
