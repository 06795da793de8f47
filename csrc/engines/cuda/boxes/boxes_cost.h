// Cost model of cuda_boxes. Plain host code.
#pragma once

#include "core/gather_view.h"
#include "engines/cuda/boxes/boxes_shape.h"

namespace convx {

// Predicted microseconds of a launch. blocks: blocks per multiprocessor.
double predict_boxes(const ConvProblem& problem, const GatherTensors& view, const DeviceCaps& caps,
                     const BoxesShape& shape, int blocks);

}  // namespace convx
