// Which tile a problem takes, and what that would cost. Plain host code.
#pragma once

#include <string>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda_bands/bands_params.h"

namespace convx {

struct BandsFit {
  BandsParams params{};      // but for buffers
  int depth = 0;             // columns of a step
  int steps = 0, tiles = 0;  // of the kernel
  int64_t blocks = 0;        // 0: nothing fits
  int64_t shared_bytes = 0;  // of a block
  double microseconds = 0;   // predicted
  // For a row of taps, on average: products of a step with a band, and steps that are read.
  double products = 0, steps_read = 0;

  int64_t columns() const { return int64_t{tiles} * depth; }  // of a block
};

// For problems that were not refused.
BandsFit fit_bands(const ConvProblem& problem, const DeviceCaps& caps);

// What the kernel is told for a call.
BandsParams make_bands_params(const ConvProblem& problem, const BandsFit& fit,
                              const Buffers& buffers);

}  // namespace convx
