// The predicted time of a shape. The model is described in window_costs.cpp.
#pragma once

#include "engines/cuda_lines/window_shape.h"

namespace convx {

double predict_microseconds(const ConvProblem& problem, const DeviceCaps& caps,
                            const WindowShape& shape);

}  // namespace convx
