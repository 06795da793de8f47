#pragma once

#include <vector>

#include "engines/cuda/pixels/pixel_fit.h"

namespace convx {

// What the pixel kernels compute about places, by their own source.
struct PixelPlaces {
  // [tile] first, end, image, group, filter, filter tile, chunk, chunk_end, split
  std::vector<int> tiles;
  // Of tiles with the first filters and the first part of the reduction; others stage the same.
  std::vector<int> bases;      // [tile][2][window] positions
  std::vector<int> sources;    // [tile][entries] offsets, or -1
  std::vector<int> distances;  // [steps][4][gathered depth] bytes, or -1; empty unless folded; of
                               // pairs: [steps][4][gathered pairs], or 0
};

PixelPlaces emulate_pixel_places(const PixelFit& fit);

}  // namespace convx
