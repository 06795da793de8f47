// Sources of channels_last whose pixels do not begin at multiples of 16 bytes have no boxes. They
// are copied first to where they do, [image][row][column][padded pixel]. Plain host code.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace convx {

struct SourcePadding {
  int64_t bytes = 0;  // of the copy; 0: there is none
  int64_t images = 0, rows = 0, columns = 0;
  int64_t element_bytes = 0, pixel_bytes = 0, padded_bytes = 0;  // of a pixel: without, and with
  Strides from;                                                  // of the source, in elements
};

// Nothing where a problem's tensors have boxes as they are, or cannot have any.
SourcePadding find_source_padding(const ConvProblem& problem);

// The problem of a source that lies as the copy does.
ConvProblem with_padded_source(const ConvProblem& problem, const SourcePadding& padding);

double predict_padding(const SourcePadding& padding);  // microseconds

// Bytes before the copy, in the workspace.
constexpr int64_t align_padding(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace convx
