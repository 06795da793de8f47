// Chooses the tile of a problem and predicts its time. Plain host code.
#pragma once

#include <span>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda/depthwise/bands_params.h"

namespace convx {

struct BandsFit {
  BandsParams params{};      // complete except for the buffers
  int depth = 0;             // source columns of a step
  int steps = 0, tiles = 0;  // template arguments of the kernel
  int64_t blocks = 0;        // 0: no tile fits
  int64_t shared_bytes = 0;  // per block
  double microseconds = 0;   // predicted
  double products = 0;       // average (step, band) pairs per row of taps

  int64_t columns() const { return int64_t{tiles} * depth; }  // output columns of a block
};

// The largest tile of a block: output columns, and output rows of all its images together.
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

// Returns the tile with the shortest predicted time. The problem must not have been refused.
BandsFit fit_bands(const ConvProblem& problem, const DeviceCaps& caps,
                   std::span<const BandsTile> tiles = kBandTiles);

// Completes the kernel parameters with the buffers of one call. Their alignment limits the widths
// of copies and stores.
BandsParams make_bands_params(const ConvProblem& problem, const BandsFit& fit,
                              const Buffers& buffers);

}  // namespace convx
