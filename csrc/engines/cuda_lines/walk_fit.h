// Whether blocks can walk along the line (line_walk.cuh), and with what in shared memory.
#pragma once

#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda_lines/window_shape.h"

namespace convx {

// Of a shape whose line and tile are laid out, all in one stretch of positions.
bool fit_walk(const ConvProblem& problem, const DeviceCaps& caps, WindowShape& shape);

}  // namespace convx
