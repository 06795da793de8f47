// Decides whether TMA can read tiles directly from the source, and store them (source_boxes.cuh).
#pragma once

#include "core/problem.h"
#include "engines/cuda_lines/window_shape.h"

namespace convx {

// Changes a shape whose line and tile are laid out, such that a stage consists of boxes. Returns
// false if TMA cannot read them.
bool lay_out_boxes(const ConvProblem& problem, WindowShape& shape);

// Whether TMA can store a window with 64 filters as one box. No window may go beyond the end of a
// row.
bool can_store_boxes(const ConvProblem& problem, const WindowShape& shape);

}  // namespace convx
