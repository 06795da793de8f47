// What the taps of one axis of a gather read, seen from a position of the line (window_shape.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/arithmetic.h"
#include "planning/gather_axis.h"

namespace convx {

inline int64_t floor_div(int64_t a, int64_t b) { return (a - floor_mod(a, b)) / b; }

inline int64_t place_of(const std::vector<int64_t>& phases, int64_t phase) {
  return std::find(phases.begin(), phases.end(), phase) - phases.begin();
}

// The residues of the source that the taps of an axis read, and how far the taps reach.
struct AxisReach {
  int64_t first = 0, last = 0;  // target steps from a position to its first and last tap
  std::vector<int64_t> phases;

  explicit AxisReach(const GatherAxis& axis) {
    for (int64_t i = 0; i < axis.taps; ++i) {
      phases.push_back(floor_mod(axis.offset0 + i * axis.offset_step, axis.source_step));
    }
    std::sort(phases.begin(), phases.end());
    phases.erase(std::unique(phases.begin(), phases.end()), phases.end());
    first = floor_div(axis.offset0, axis.source_step);
    last = floor_div(axis.offset0 + (axis.taps - 1) * axis.offset_step, axis.source_step);
  }
  int64_t span() const { return last - first; }

  // The smallest distance from one row (or image) to the next with which taps beyond the end of a
  // row read zeros. The zeros before a row's first source value also serve the end of the previous
  // row.
  int64_t shared_pitch(const GatherAxis& axis, int64_t source_extent) const {
    const int64_t reach = axis.count + span();  // no tap reads the next row
    const int64_t zeros = std::max<int64_t>(0, -first);
    const int64_t source_end = ceil_div(source_extent, axis.source_step) - first;
    return std::min(reach, std::max({axis.count, reach - zeros, source_end}));
  }
};

}  // namespace convx
