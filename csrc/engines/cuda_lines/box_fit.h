// Whether tiles can be read from the source itself, by boxes (source_boxes.cuh).
#pragma once

#include "core/problem.h"
#include "engines/cuda_lines/window_shape.h"

namespace convx {

// Changes a shape whose line and tile are laid out such that boxes of source rows are its tile.
bool lay_out_boxes(const ConvProblem& problem, WindowShape& shape);

// Whether a window's filters are a box of the target: no window goes beyond the end of a row.
bool can_store_boxes(const ConvProblem& problem, const WindowShape& shape);

}  // namespace convx
