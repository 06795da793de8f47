// Predicts the time of a weight gradient. Plain host code.
#pragma once

#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda_weight_grad/wgrad_geometry.h"

namespace convx {

// Packing, MMAs and the reduction, in microseconds.
double predict_wgrad(const ConvProblem& problem, const DeviceCaps& caps,
                     const WgradGeometry& geometry, OperandForm form);

// The kernel that adds partial sums, of either MMA kernel.
double predict_reduction(const ConvProblem& problem, const WgradGeometry& geometry);

}  // namespace convx
