// Tensor cores with pixels as rows, gathered from shared memory into registers.
#pragma once

#include <optional>

#include "core/engine.h"
#include "engines/cuda_pixel_tiles/pixel_fit.h"

namespace convx {

struct PixelsPlan {
  PixelFit exact;
  // Values are first multiplied as halves. Where that turns out not to do, exact takes over; else
  // its kernels have nothing to do.
  std::optional<PixelFit> half;
  int64_t scale_bytes = 0;  // of the workspace, before everything else
};

Engine cuda_pixels_engine();

}  // namespace convx
