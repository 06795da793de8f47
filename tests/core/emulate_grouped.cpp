// The grouped kernels themselves, run on the host.
#include "emulated_cuda/run_grid.h"
//
#include "emulate_grouped.h"
#include "engines/cuda/grouped/grouped_kernel.cuh"
#include "engines/cuda/grouped/grouped_mma_kernel.cuh"
#include "engines/cuda/grouped/grouped_pixel_kernel.cuh"

namespace convx {
namespace {

template <typename T, int kCells>
void compute_cells(int filters, const GroupedMmaParams& params) {
  unsigned char* shared = emulated_shared_memory;
  if (filters == 4) return compute_grouped_tile<T, 4, kCells>(params, shared);
  if (filters == 8) return compute_grouped_tile<T, 8, kCells>(params, shared);
  compute_grouped_tile<T, 16, kCells>(params, shared);
}

template <typename T>
void compute_tile(const GroupedMmaFit& fit, const GroupedMmaParams& params) {
  if (fit.cells == kManyCells) return compute_cells<T, kManyCells>(fit.filters, params);
  compute_cells<T, kFewCells>(fit.filters, params);
}

}  // namespace

const char* emulate_grouped_mma(const ConvProblem& problem, const GroupedMmaFit& fit,
                                const Buffers& buffers) {
  const GroupedMmaParams params = make_grouped_mma_params(problem, fit, buffers);
  const auto run = [&](auto element) {
    using T = decltype(element);
    if constexpr (sizeof(T) == 2) compute_tile<T>(fit, params);
  };
  emulator::fault = nullptr;
  if (!emulator::run_grid(problem.dtype, fit.blocks, kGroupedMmaThreads, fit.shared_bytes, run)) {
    return "a block wrote behind its shared memory";
  }
  return emulator::fault;
}

bool emulate_grouped_pixels(const ConvProblem& problem, const GroupedPixelFit& fit,
                            const Buffers& buffers) {
  const GroupedPixelParams params = make_grouped_pixel_params(problem, fit, buffers);
  const auto run = [&](auto element) { grouped_pixel_kernel<decltype(element)>(params); };
  return emulator::run_grid(problem.dtype, fit.blocks, kPixelThreads, fit.shared_bytes, run);
}

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
