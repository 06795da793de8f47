// How the lines of a tile, its source rows, are brought into shared memory. Plain data and host
// code.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/problem.h"
#include "device/fast_divmod.cuh"

namespace convx {

// A line is copied in units of one to 16 bytes. A thread keeps to one unit of the line and goes
// down the lines, so that it has to find the unit's place only once.
struct StagePlan {
  int rows;            // lines of one plane
  int units;           // of a line
  int lines_per_pass;  // that the block's threads copy at once
  int line_pitch;      // elements between lines in shared memory
  int unit;            // elements
  FastDivmod by_units;
};

inline void set_stage_units(StagePlan& stage, int64_t units, int unit, int threads) {
  stage.unit = unit;
  stage.units = static_cast<int>(units);
  stage.lines_per_pass = static_cast<int>(std::clamp<int64_t>(threads / units, 1, stage.rows));
  stage.by_units = FastDivmod(units);
}

// The most elements, of at most 16 bytes, by which all these extents and strides can be cut.
// Strides of axes with one element do not count; pass 0 for them.
template <typename... Extents>
int fit_unit(int64_t element_bytes, Extents... extents) {
  int64_t unit = 16 / element_bytes;
  while (unit > 1 && ((extents % unit != 0) || ...)) unit /= 2;
  return static_cast<int>(unit);
}

// The most elements, at most `unit`, of whose size the address is a multiple.
inline int fit_unit_to_address(const void* address, int64_t element_bytes, int unit) {
  const auto bytes = static_cast<uintptr_t>(element_bytes);
  while (unit > 1 && reinterpret_cast<uintptr_t>(address) % (unit * bytes) != 0) unit /= 2;
  return unit;
}

inline bool is_aligned(const void* address, DType dtype, int elements) {
  return fit_unit_to_address(address, size_of(dtype), elements) == elements;
}
// To what the widest loads and the copy engine move at once: 16 bytes.
inline bool is_unit_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

// 1, 2, 3, 4, 6, 8, 12, 16, ...: enough sizes of tiles to choose from.
inline int64_t next_size(int64_t size) {
  if (size < 4) return size + 1;
  return (size & (size - 1)) == 0 ? size / 2 * 3 : size / 3 * 4;
}

}  // namespace convx
