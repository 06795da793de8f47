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

// Pixels of a tile, from more than half of most to most.
struct DiagonalTileSize {
  const char* name;
  int most;
};
constexpr DiagonalTileSize kDiagonalTileSizes[] = {
    {"tiles_64", 64},   {"tiles_128", 128},   {"tiles_256", 256},
    {"tiles_512", 512}, {"tiles_1024", 1024},
};

// The tile that is predicted to be the fastest, for problems that were not refused.
DiagonalFit fit_diagonal(const ConvProblem& problem, const DeviceCaps& caps);
// The same of tiles of one size.
DiagonalFit fit_diagonal(const ConvProblem& problem, const DeviceCaps& caps,
                         const DiagonalTileSize& size);

// What the kernel is told for a call.
DiagonalParams make_diagonal_params(const ConvProblem& problem, const DiagonalFit& fit,
                                    const Buffers& buffers);

}  // namespace convx
