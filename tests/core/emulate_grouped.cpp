// The grouped kernel itself, run on the host.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_grouped.h"
#include "engines/cuda_grouped/grouped_kernel.cuh"

namespace convx {

bool emulate_grouped(const ConvProblem& problem, const GroupedFit& fit, const Buffers& buffers) {
  const GroupedParams params = make_grouped_params(problem, fit, buffers);
  const auto run = [&](auto element) {
    using T = decltype(element);
    if (fit.window == ColumnWindow::kRows) {
      return grouped_kernel<T, ColumnWindow::kRows, kManyFilters>(params);
    }
    if (fit.window == ColumnWindow::kRowsStride2) {
      return grouped_kernel<T, ColumnWindow::kRowsStride2, kManyFilters>(params);
    }
    if (fit.filters == kManyFilters) {
      return grouped_kernel<T, ColumnWindow::kSegments, kManyFilters>(params);
    }
    grouped_kernel<T, ColumnWindow::kSegments, kFewFilters>(params);
  };
  return emulator::run_grid(problem.dtype, fit.blocks, fit.threads, fit.shared_bytes, run);
}

}  // namespace convx
