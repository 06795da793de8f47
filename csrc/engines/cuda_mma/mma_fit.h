// What a plan of cuda_mma remembers.
#pragma once

#include <vector>

#include "engines/cuda_pixel_tiles/pixel_fit.h"

namespace convx {

// A phase after the other (core/gather_view.h), in the same workspace.
struct MmaFit {
  std::vector<PixelFit> phases;
};

}  // namespace convx
