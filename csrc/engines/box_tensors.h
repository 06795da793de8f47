// Tensors that the copy engine can read or store boxes of (cuda/boxed_tensor.h). Plain host code.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace convx {

inline constexpr int64_t kMaxBoxStep = 8;    // from a value of a box to the next, of any axis
inline constexpr int64_t kMaxBoxSpan = 256;  // from the first to the last

// Channels lie together, in whole units of 16 bytes, and pixels follow each other.
inline bool has_boxes(const Strides& strides, int64_t channels, int64_t element_bytes) {
  const int64_t unit = 16 / element_bytes;
  return strides.c == 1 && strides.w % unit == 0 && strides.h % unit == 0 &&
         strides.n % unit == 0 && strides.w >= channels && strides.h >= strides.w &&
         strides.n >= strides.h;
}

}  // namespace convx
