// The fitter of cuda_lines with costs by what a test wants to see: every way to
// cut a line can be had for any problem that allows it, whatever it would cost
// on a GPU.
#pragma once

#include <string>

#include "engines/cuda/lines/window_shape.h"

namespace convx {

// "stretches", "strips", "rows" or "pairs" of rows; where windows overlap,
// "overlapping " before it.
std::string name_cut(const WindowShape &shape);

// What is wanted; an empty cut or 0 is anything.
struct WindowWish {
  std::string cut;
  int columns = 0, filter_groups = 0, lane_bytes = 0, splits = 0;
  uint32_t seed = 0; // among shapes that are wanted equally
  bool half = false; // multiplied as halves first
  int bands = 1;     // of each phase
};

// The shape that has most of it.
WindowShape fit_wished_window(const ConvProblem &problem,
                              const DeviceCaps &caps, TensorMath math,
                              const GatherPhase &phase, const WindowWish &wish);

} // namespace convx
