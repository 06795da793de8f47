// A grouped problem that is fitted and ready to launch but for its buffers. Plain host code.
#pragma once

#include <cstdint>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda_grouped/grouped_mma_fit.h"
#include "engines/cuda_grouped/grouped_params.h"
#include "engines/cuda_grouped/grouped_pixel_fit.h"

namespace convx {

// Plan::shape.
struct GroupedFit {
  GroupedParams params{};
  ColumnWindow window = ColumnWindow::kSegments;
  int filters = kManyFilters;  // of a cell
  int threads = 0;
  int64_t blocks = 0;  // 0: no tile fits in shared memory
  int64_t shared_bytes = 0;
  int64_t resident = 0;  // blocks on a multiprocessor
  double microseconds = 0;
  GroupedMmaFit mma;       // if it has blocks, tensor cores do all of it
  GroupedPixelFit pixels;  // if it has blocks, channels are neighbours, and this does all of it

  const GroupedTask& task() const {
    return mma.blocks > 0 ? static_cast<const GroupedTask&>(mma.params) : params;
  }
};

// Whether columns are neighbours in source and target; if not, channels are.
bool has_grouped_planes(const ConvProblem& problem);

// Forward, or an input gradient of stride 1.
GroupedFit fit_grouped(const ConvProblem& problem, const DeviceCaps& caps);

// Whether any tile of planes fits, which is sooner found.
bool fits_grouped(const ConvProblem& problem, const DeviceCaps& caps);

// What the kernel is launched with. Addresses decide how wide copies and stores can be.
GroupedParams make_grouped_params(const ConvProblem& problem, const GroupedFit& fit,
                                  const Buffers& buffers);

}  // namespace convx
