// What tiles of boxes cost. Plain host code.
#pragma once

#include "core/gather_view.h"
#include "engines/cuda_boxes/boxes_shape.h"

namespace convx {

// Of a launch, in microseconds, by so many blocks of a multiprocessor.
double predict_boxes(const ConvProblem& problem, const GatherTensors& view, const DeviceCaps& caps,
                     const BoxesShape& shape, int blocks);

}  // namespace convx
