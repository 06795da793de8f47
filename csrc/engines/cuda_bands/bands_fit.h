// Which tile a problem takes, and what that would cost. Plain host code.
#pragma once

#include <span>

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
  double products = 0;       // of a step with a band, for a row of taps, on average

  int64_t columns() const { return int64_t{tiles} * depth; }  // of a block
};

// What a block computes at most: columns, and rows of all its images.
struct BandsTile {
  const char* name;
  int columns, rows;
};
constexpr int kBandMostRows = kBandRows * kBandMostWarps;
constexpr BandsTile kBandTiles[] = {
    {"tiles_16x256", 16, kBandMostRows},     {"tiles_32x256", 32, kBandMostRows},
    {"tiles_64x256", 64, kBandMostRows},     {"tiles_16x128", 16, kBandMostRows / 2},
    {"tiles_32x128", 32, kBandMostRows / 2}, {"tiles_64x128", 64, kBandMostRows / 2},
};

// The tile that is predicted to be the fastest, for problems that were not refused.
BandsFit fit_bands(const ConvProblem& problem, const DeviceCaps& caps,
                   std::span<const BandsTile> tiles = kBandTiles);

// What the kernel is told for a call.
BandsParams make_bands_params(const ConvProblem& problem, const BandsFit& fit,
                              const Buffers& buffers);

}  // namespace convx
