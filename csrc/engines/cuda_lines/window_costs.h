// How long a window kernel is expected to take.
#pragma once

#include "engines/cuda_lines/window_shape.h"

namespace convx {

double predict_microseconds(const ConvProblem& problem, const DeviceCaps& caps,
                            const WindowShape& shape);

}  // namespace convx
