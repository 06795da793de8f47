// A fitted gather, ready to launch except for its buffers. Plain host code.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "engines/cuda/direct/gather_params.h"
#include "engines/cuda/direct/gather_shape.h"

namespace convx {

// Stored in Plan::shape for the forward pass and the input gradient.
struct GatherFit {
  GatherShape shape;
  GatherParams params;  // without buffers; has the phases of the first launch
};

// packed: the workspace has shape.packed_bytes for packed weights.
GatherFit make_gather_fit(const ConvProblem& problem, GatherShape shape, bool packed);

// Set the phases of one launch: as many as it covers, from `first` on. Unless `first` is 0, the
// previous call must have set the phases just before it.
void set_row_phases(GatherParams& params, const GatherShape& shape, int64_t first);
void set_column_phases(GatherParams& params, const GatherShape& shape, int64_t first);

}  // namespace convx
