// Choices that both depthwise kernels' tiles share. Plain host code.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/arithmetic.h"
#include "engines/cuda_depthwise/depthwise_params.h"

namespace convx {

// The most elements, of at most 16 bytes, by which all these extents and strides can be cut.
// Strides of axes with one element do not count; pass 0 for them.
template <typename... Extents>
int fit_unit(int64_t element_bytes, Extents... extents) {
  int64_t unit = 16 / element_bytes;
  while (unit > 1 && ((extents % unit != 0) || ...)) unit /= 2;
  return static_cast<int>(unit);
}

inline void set_stage_units(StagePlan& stage, int64_t units, int unit) {
  stage.unit = unit;
  stage.units = static_cast<int>(units);
  stage.lines_per_pass =
      static_cast<int>(std::clamp<int64_t>(kDepthwiseThreads / units, 1, stage.rows));
  stage.by_units = FastDivmod(units);
}

// Filters of a channel are shared out among blocks where there are few tiles.
inline int64_t count_filter_parts(int64_t multiplier, int64_t tiles, int64_t sm_count) {
  constexpr int64_t kBlocksPerSm = 4;
  const int64_t wanted = ceil_div(kBlocksPerSm * sm_count, std::max<int64_t>(1, tiles));
  return std::min(multiplier, wanted);
}

// 1, 2, 3, 4, 6, 8, 12, 16, ...: enough sizes to choose from.
inline int64_t next_size(int64_t size) {
  if (size < 4) return size + 1;
  return (size & (size - 1)) == 0 ? size / 2 * 3 : size / 3 * 4;
}

}  // namespace convx
