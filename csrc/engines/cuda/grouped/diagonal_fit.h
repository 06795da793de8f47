// Chooses the tile of a problem and predicts its time. Plain host code.
#pragma once

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda/grouped/diagonal_params.h"

namespace convx {

struct DiagonalFit {
  DiagonalParams params{};   // complete except for the buffers
  int64_t blocks = 0;        // 0: no tile fits
  int64_t shared_bytes = 0;  // per block
  int warp_pixels = 0;       // that a warp computes at once
  int pieces = 0;            // of a filter chunk: 8 filters each
  double mean_depth = 0;     // source chunks that a filter chunk reads
  double microseconds = 0;   // predicted
};

// A variant: tiles of more than most / 2 and at most `most` pixels.
struct DiagonalTileSize {
  const char* name;
  int most;
};
constexpr DiagonalTileSize kDiagonalTileSizes[] = {
    {"tiles_32", 32},   {"tiles_64", 64},   {"tiles_128", 128},
    {"tiles_256", 256}, {"tiles_512", 512}, {"tiles_1024", 1024},
};

// Returns the tile with the shortest predicted time, or one without blocks if none fits.
DiagonalFit fit_diagonal(const ConvProblem& problem, const DeviceCaps& caps);
// The same, among tiles of one size.
DiagonalFit fit_diagonal(const ConvProblem& problem, const DeviceCaps& caps,
                         const DiagonalTileSize& size);

// Completes the kernel parameters with the buffers of one call. Their alignment limits the widths
// of copies and stores.
DiagonalParams make_diagonal_params(const ConvProblem& problem, const DiagonalFit& fit,
                                    const Buffers& buffers);

}  // namespace convx
