// A fitted shape, and all kernel parameters that do not depend on the tensors' addresses.
#pragma once

#include "core/gather_view.h"
#include "core/plan.h"
#include "engines/cuda/lines/window_params.h"
#include "engines/cuda/lines/window_shape.h"
#include "planning/half_plan.h"

namespace convx {

struct WindowFit {
  WindowShape shape;
  WindowParams params;  // its pointers are null
};

struct LinesPlan {
  static constexpr EngineId kEngines[] = {EngineId::kCudaLines};

  ConvProblem problem;  // the problem that was fitted; it may be a flattened one
  PhasedPlan<WindowFit> phases;

  void describe(Text& out) const { describe_phases(out, phases); }
};

WindowFit make_window_fit(const ConvProblem& problem, WindowShape shape);

// The kernel parameters of a call. offset: where the call's part of the workspace starts.
WindowParams make_window_params(const ConvProblem& problem, const WindowFit& fit, Buffers buffers,
                                int64_t offset);

}  // namespace convx
