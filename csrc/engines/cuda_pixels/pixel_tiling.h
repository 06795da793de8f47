// The tiles of cuda_pixels, and how a block of it uses shared memory.
#pragma once

#include "engines/cuda_pixel_tiles/pixel_shape.h"

namespace convx {

inline constexpr int kPixelLoaders = 96;        // threads that load source values
inline constexpr int kPixelThreads = 384;       // two warpgroups that multiply, and one that loads
inline constexpr int kPixelBarrierBytes = 512;  // of a block, before its tables

PixelTiling make_pixel_tiling(TensorMath math);

}  // namespace convx
