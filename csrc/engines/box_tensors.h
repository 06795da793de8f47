// Which tensors TMA can read and store as boxes (cuda/boxed_tensor.h). Plain host code.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace convx {

// Limits of a tensor map along each axis: the step between a box's elements, and the span from its
// first element to its last.
inline constexpr int64_t kMaxBoxStep = 8;
inline constexpr int64_t kMaxBoxSpan = 256;

// True if channels are contiguous, every stride is a multiple of 16 bytes, and pixels, rows and
// images do not overlap.
inline bool has_boxes(const Strides& strides, int64_t channels, int64_t element_bytes) {
  const int64_t unit = 16 / element_bytes;
  return strides.c == 1 && strides.w % unit == 0 && strides.h % unit == 0 &&
         strides.n % unit == 0 && strides.w >= channels && strides.h >= strides.w &&
         strides.n >= strides.h;
}

}  // namespace convx
