// The tiles of cuda_mma, and the layout of a block's shared memory.
#pragma once

#include "engines/cuda_pixel_tiles/pixel_shape.h"

namespace convx {

inline constexpr int kMmaThreads = 256;

// Blocks per multiprocessor, limited by registers. Split values have more operands, and
// accumulators of a step besides the totals.
constexpr int count_mma_blocks(TensorMath math, int filters, int blocks) {
  const bool few = math == TensorMath::kIeee ? filters == 32 : filters <= 64;
  return few && blocks <= 2 ? 2 : 1;
}

PixelTiling make_mma_tiling(TensorMath math);

}  // namespace convx
