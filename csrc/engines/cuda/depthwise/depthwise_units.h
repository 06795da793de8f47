// Planning helpers of both tile kernels. Plain host code.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/arithmetic.h"
#include "engines/cuda/depthwise/depthwise_params.h"

namespace convx {

// If there are few tiles, the filters of a channel are divided among several blocks.
inline int64_t count_filter_parts(int64_t multiplier, int64_t tiles, int64_t sm_count) {
  constexpr int64_t kBlocksPerSm = 4;
  const int64_t wanted = ceil_div(kBlocksPerSm * sm_count, std::max<int64_t>(1, tiles));
  return std::min(multiplier, wanted);
}

}  // namespace convx
