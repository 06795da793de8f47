// Convolutions that see the pixels of an image as one row.
#pragma once

#include "core/problem.h"

namespace convx {

// A 1x1 convolution without stride and padding computes each pixel by itself. If its rows follow
// each other in memory, they become one long row, which is copied and tiled without remainders.
inline ConvProblem flatten_pointwise(ConvProblem p) {
  const bool pointwise = p.taps() == 1 && p.stride == Hw{} && p.pad == Padding{};
  if (pointwise && p.x_strides.h == p.W * p.x_strides.w && p.y_strides.h == p.Q * p.y_strides.w) {
    p.W = p.Q = p.H * p.W;
    p.H = p.P = 1;
  }
  return p;
}

}  // namespace convx
