// The tiles of cuda_mma, and how a block of it uses shared memory.
#pragma once

#include "engines/cuda_pixel_tiles/pixel_shape.h"

namespace convx {

inline constexpr int kMmaThreads = 256;

// Blocks per multiprocessor that registers are left for: split values have more operands, and some
// sums twice, those of a step and of all.
constexpr int count_mma_blocks(TensorMath math, int filters, int blocks) {
  const bool few = math == TensorMath::kIeee ? filters == 32 : filters <= 64;
  return few && blocks <= 2 ? 2 : 1;
}

PixelTiling make_mma_tiling(TensorMath math);

}  // namespace convx
