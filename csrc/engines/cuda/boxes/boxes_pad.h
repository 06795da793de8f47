// TMA cannot read channels_last sources whose pixels do not start at multiples of 16 bytes. They
// are copied first, with padding: [image][row][column][padded pixel]. Plain host code.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "kernels/pixel_copy.h"

namespace convx {

// Returns a copy with count 0 if the problem needs no padding, or if padding would not help.
CopiedPixels find_source_padding(const ConvProblem& problem);

// The problem with the source strides of the padded copy.
ConvProblem with_padded_source(const ConvProblem& problem, const CopiedPixels& padding);

double predict_padding(const CopiedPixels& padding);  // microseconds

inline constexpr int64_t kPaddingAlignment = 256;  // alignment of the padded copy in the workspace

}  // namespace convx
