// The plan of cuda_mma.
#pragma once

#include <vector>

#include "engines/cuda_pixel_tiles/pixel_fit.h"

namespace convx {

// The phases of a gather (core/gather_view.h). They run one after the other in the same workspace.
struct MmaFit {
  std::vector<PixelFit> phases;
};

}  // namespace convx
