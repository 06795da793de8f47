// Fits a grouped problem in 16 bits to the tensor-core kernel. Plain host code.
#pragma once

#include <cstdint>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda/grouped/grouped_mma_params.h"

namespace convx {

struct GroupedMmaFit {
  GroupedMmaParams params{};
  int filters = 0;     // per cell: 4, 8 or 16
  int cells = 0;       // per warp: 4 or 7
  int64_t blocks = 0;  // 0: the kernel does not apply, or no tile fits in shared memory
  int64_t shared_bytes = 0;
  int64_t resident = 0;  // blocks per multiprocessor
  double microseconds = 0;
};

// The problem must not have been refused by cuda_grouped.
GroupedMmaFit fit_grouped_mma(const ConvProblem& problem, const DeviceCaps& caps);

// Completes the kernel parameters with the buffers of one call. Their alignment limits the widths
// of copies and stores.
GroupedMmaParams make_grouped_mma_params(const ConvProblem& problem, const GroupedMmaFit& fit,
                                         const Buffers& buffers);

}  // namespace convx
