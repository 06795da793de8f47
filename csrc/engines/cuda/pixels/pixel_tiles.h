// The tiles that kernels of cuda_pixels and cuda_mma are compiled for: planners choose from these
// lists, and launch functions instantiate them.
#pragma once

#include "engines/cuda/pixels/pixel_fit.h"

namespace convx {

// cuda_pixels: two consumer warpgroups, and a producer warpgroup of which three warps load source
// values.
inline constexpr int kPixelLoaders = 96;
inline constexpr int kPixelThreads = 384;
inline constexpr int kPixelBarrierBytes = 512;  // at the start of shared memory, before the tables

inline constexpr PixelTileSize kWgmmaTiles[] = {
    {64, 4}, {64, 2}, {128, 2}, {256, 1}, {64, 4, true}, {96, 2, true}, {128, 2, true}};
inline constexpr PixelTileSize kWgmmaIeeeTiles[] = {
    {64, 2}, {128, 1}, {64, 2, true}, {96, 1, true}, {64, 2, true, true}, {96, 1, true, true}};
inline constexpr PixelTileSize kWgmmaHalfTf32Tiles[] = {{64, 4, true, true}, {96, 2, true, true}};
inline constexpr PixelTileSize kWgmmaHalfIeeeTiles[] = {{64, 2, true, true}, {96, 1, true, true}};

template <TensorMath kMath>
constexpr const auto& wgmma_tiles() {
  if constexpr (kMath == TensorMath::kIeee)
    return kWgmmaIeeeTiles;
  else if constexpr (kMath == TensorMath::kHalfTf32)
    return kWgmmaHalfTf32Tiles;
  else if constexpr (kMath == TensorMath::kHalfIeee)
    return kWgmmaHalfIeeeTiles;
  else
    return kWgmmaTiles;
}

// cuda_mma: eight warps, which load and multiply in turn.
inline constexpr int kMmaThreads = 256;

inline constexpr PixelTileSize kMmaTiles[] = {{64, 2}, {128, 2}, {64, 1}, {32, 2}, {64, 2, true}};
inline constexpr PixelTileSize kMmaIeeeTiles[] = {{64, 2}, {64, 1}, {32, 2}, {64, 2, true}};

template <TensorMath kMath>
constexpr const auto& mma_tiles() {
  if constexpr (kMath == TensorMath::kIeee)
    return kMmaIeeeTiles;
  else
    return kMmaTiles;
}

// On GPUs with wgmma cuda_mma runs only by name: there it has one tile and one that folds taps, in
// every format, and builds for these GPUs alone compile no others. The first is the smaller of the
// general ones: it fits in shared memory for nearly all problems that any tile fits for.
inline constexpr PixelTileSize kMmaTilesBesideWgmma[] = {{64, 1}, {64, 2, true}};
constexpr bool has_mma_tile_beside_wgmma(const PixelTileSize& tile) {
  for (const PixelTileSize& known : kMmaTilesBesideWgmma) {
    if (known == tile) return true;
  }
  return false;
}

// Blocks per multiprocessor, limited by registers. Split values have more operands, and
// accumulators of a step besides the totals.
constexpr int count_mma_blocks(TensorMath math, int filters, int blocks) {
  const bool few = math == TensorMath::kIeee ? filters == 32 : filters <= 64;
  return few && blocks <= 2 ? 2 : 1;
}

PixelTiling make_wgmma_tiling(TensorMath math);
PixelTiling make_mma_tiling(TensorMath math, const DeviceCaps& caps);

}  // namespace convx
