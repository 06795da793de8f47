// A grouped problem in 16 bits, fitted to tensor cores. Plain host code.
#pragma once

#include <cstdint>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda_grouped/grouped_mma_params.h"

namespace convx {

struct GroupedMmaFit {
  GroupedMmaParams params{};
  int filters = 0;     // of a cell: 4, 8 or 16
  int cells = 0;       // of a warp: 4 or 7
  int64_t blocks = 0;  // 0: not for tensor cores, or no tile fits in shared memory
  int64_t shared_bytes = 0;
  int64_t resident = 0;  // blocks on a multiprocessor
  double microseconds = 0;
};

// For problems that cuda_grouped does not refuse.
GroupedMmaFit fit_grouped_mma(const ConvProblem& problem, const DeviceCaps& caps);

// What the kernel is launched with. Addresses decide how wide copies can be.
GroupedMmaParams make_grouped_mma_params(const ConvProblem& problem, const GroupedMmaFit& fit,
                                         const Buffers& buffers);

}  // namespace convx
