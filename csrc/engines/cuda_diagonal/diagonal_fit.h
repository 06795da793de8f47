// Which tile a problem takes, and what that would cost. Plain host code.
#pragma once

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda_diagonal/diagonal_params.h"

namespace convx {

struct DiagonalFit {
  DiagonalParams params{};   // but for buffers
  int64_t blocks = 0;        // 0: nothing fits
  int64_t shared_bytes = 0;  // of a block
  double microseconds = 0;   // predicted
};

// For problems that were not refused.
DiagonalFit fit_diagonal(const ConvProblem& problem, const DeviceCaps& caps);

// What the kernel is told for a call.
DiagonalParams make_diagonal_params(const ConvProblem& problem, const DiagonalFit& fit,
                                    const Buffers& buffers);

}  // namespace convx
