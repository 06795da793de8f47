// Choices that both depthwise kernels' tiles share. Plain host code.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/arithmetic.h"
#include "engines/cuda_depthwise/depthwise_params.h"

namespace convx {

// Filters of a channel are shared out among blocks where there are few tiles.
inline int64_t count_filter_parts(int64_t multiplier, int64_t tiles, int64_t sm_count) {
  constexpr int64_t kBlocksPerSm = 4;
  const int64_t wanted = ceil_div(kBlocksPerSm * sm_count, std::max<int64_t>(1, tiles));
  return std::min(multiplier, wanted);
}

}  // namespace convx
