// A gather that is fitted and ready to launch but for its buffers. Plain host code.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "engines/cuda_direct/gather_params.h"
#include "engines/cuda_direct/gather_shape.h"

namespace convx {

// Plan::shape of the forward pass and the input gradient.
struct GatherFit {
  GatherShape shape;
  GatherParams params;  // without buffers; the phases are those of the first launch
};

// packed: the workspace has room for shape.packed_bytes of weights.
GatherFit make_gather_fit(const ConvProblem& problem, GatherShape shape, bool packed);

// Tell the parameters about the phases of a launch, as many as one covers from first on. Phases
// before first must have been told last, or first is 0.
void set_row_phases(GatherParams& params, const GatherShape& shape, int64_t first);
void set_column_phases(GatherParams& params, const GatherShape& shape, int64_t first);

}  // namespace convx
