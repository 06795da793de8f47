// A fitted grouped problem, ready to launch except for its buffers. Plain host code.
#pragma once

#include <cstdint>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda/grouped/grouped_mma_fit.h"
#include "engines/cuda/grouped/grouped_params.h"
#include "engines/cuda/grouped/grouped_pixel_fit.h"

namespace convx {

// Stored in Plan::shape.
struct GroupedFit {
  GroupedParams params{};
  ColumnWindow window = ColumnWindow::kSegments;
  int filters = kManyFilters;  // per cell
  int threads = 0;
  int64_t blocks = 0;  // 0: no tile fits in shared memory
  int64_t shared_bytes = 0;
  int64_t resident = 0;  // blocks per multiprocessor
  double microseconds = 0;
  GroupedMmaFit mma;       // if mma.blocks > 0, the tensor-core kernel computes the problem
  GroupedPixelFit pixels;  // if pixels.blocks > 0, the channels_last kernel does

  const GroupedTask& task() const {
    return mma.blocks > 0 ? static_cast<const GroupedTask&>(mma.params) : params;
  }
};

// Returns whether columns are contiguous in source and target (NCHW). If not, channels must be.
bool has_grouped_planes(const ConvProblem& problem);

// Fits a forward pass or an input gradient with stride 1.
GroupedFit fit_grouped(const ConvProblem& problem, const DeviceCaps& caps);

// Returns whether any tile of the NCHW kernel fits. Faster than fit_grouped.
bool fits_grouped(const ConvProblem& problem, const DeviceCaps& caps);

// Completes the kernel parameters with the buffers of one call. Their alignment limits the widths
// of copies and stores.
GroupedParams make_grouped_params(const ConvProblem& problem, const GroupedFit& fit,
                                  const Buffers& buffers);

}  // namespace convx
