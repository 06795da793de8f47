// The tiles of cuda_pixels, and the layout of a block's shared memory.
#pragma once

#include "engines/cuda_pixel_tiles/pixel_shape.h"

namespace convx {

inline constexpr int kPixelLoaders = 96;   // producer threads, which load source values
inline constexpr int kPixelThreads = 384;  // two consumer warpgroups, and the producer warpgroup
inline constexpr int kPixelBarrierBytes = 512;  // at the start of shared memory, before the tables

PixelTiling make_pixel_tiling(TensorMath math);

}  // namespace convx
