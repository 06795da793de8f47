// Sources of channels_last whose pixels do not begin at multiples of 16 bytes have no boxes. They
// are copied first to where they do, [image][row][column][padded pixel]. Plain host code.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "engines/cuda_pixel_copy.h"

namespace convx {

// None where a problem's tensors have boxes as they are, or cannot have any.
CopiedPixels find_source_padding(const ConvProblem& problem);

// The problem of a source that lies as the copy does.
ConvProblem with_padded_source(const ConvProblem& problem, const CopiedPixels& padding);

double predict_padding(const CopiedPixels& padding);  // microseconds

inline constexpr int64_t kPaddingAlignment = 256;  // of the copy, in the workspace

}  // namespace convx
