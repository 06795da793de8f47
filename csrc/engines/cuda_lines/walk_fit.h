// Decides whether blocks can stream along the line (line_walk.cuh), and lays out their shared
// memory.
#pragma once

#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda_lines/window_shape.h"

namespace convx {

// Completes a shape whose line and tile are laid out. Returns false if its blocks cannot stream, or
// if it does not fit.
bool fit_walk(const ConvProblem& problem, const DeviceCaps& caps, WindowShape& shape);

}  // namespace convx
