#pragma once

#include "core/buffers.h"
#include "engines/cuda/depthwise/phase_strip_fit.h"

namespace convx {

void emulate_phase_strips(const ConvProblem& problem, const PhaseStripFit& fit,
                          const Buffers& buffers);

}  // namespace convx
