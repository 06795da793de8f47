// A fitted shape and everything of a launch that does not depend on where tensors lie.
#pragma once

#include "core/buffers.h"
#include "core/gather_view.h"
#include "engines/cuda_lines/window_params.h"
#include "engines/cuda_lines/window_shape.h"
#include "engines/half_plan.h"

namespace convx {

struct WindowFit {
  WindowShape shape;
  WindowParams params;  // pointers are null
};

// Plan::shape.
struct LinesPlan {
  ConvProblem problem;  // as it was fitted
  PhasedPlan<WindowFit> phases;
};

WindowFit make_window_fit(const ConvProblem& problem, WindowShape shape);

// The parameters of a call. offset: where in the workspace all of it starts.
WindowParams make_window_params(const ConvProblem& problem, const WindowFit& fit, Buffers buffers,
                                int64_t offset);

}  // namespace convx
