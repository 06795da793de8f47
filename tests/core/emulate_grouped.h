#pragma once

#include "engines/cuda/grouped/grouped_fit.h"

namespace convx {

// Runs a fitted problem on the host; false if a block wrote behind its shared
// memory.
bool emulate_grouped(const ConvProblem& problem, const GroupedFit& fit, const Buffers& buffers);
// The same by tensor cores; says what went wrong, if anything.
const char* emulate_grouped_mma(const ConvProblem& problem, const GroupedMmaFit& fit,
                                const Buffers& buffers);

// The same of channels_last; false if a block wrote behind its shared memory.
bool emulate_grouped_pixels(const ConvProblem& problem, const GroupedPixelFit& fit,
                            const Buffers& buffers);

}  // namespace convx
