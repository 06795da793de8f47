// How the source rows of a tile are copied to shared memory, and alignment helpers. Plain data and
// host code. A "line" here is a source row in shared memory, with its padding.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/arithmetic.h"
#include "core/problem.h"

namespace convx {

// A row is copied in units of one element to 16 bytes. A thread keeps the same unit of the row and
// goes down the rows, so it computes the unit's position only once.
struct StagePlan {
  int rows;            // rows of one plane
  int units;           // units of a row
  int lines_per_pass;  // rows that the block's threads copy at once
  int line_pitch;      // elements between rows in shared memory
  int unit;            // elements of a unit
  FastDivmod by_units;
};

inline void set_stage_units(StagePlan& stage, int64_t units, int unit, int threads) {
  stage.unit = unit;
  stage.units = static_cast<int>(units);
  stage.lines_per_pass = static_cast<int>(std::clamp<int64_t>(threads / units, 1, stage.rows));
  stage.by_units = FastDivmod(units);
}

// The largest unit, in elements and at most 16 bytes, that divides all these extents and strides.
// Pass 0 for the stride of an axis with one element.
template <typename... Extents>
int fit_unit(int64_t element_bytes, Extents... extents) {
  int64_t unit = 16 / element_bytes;
  while (unit > 1 && ((extents % unit != 0) || ...)) unit /= 2;
  return static_cast<int>(unit);
}

// The largest unit, in elements and at most `unit`, that the address is aligned to.
inline int fit_unit_to_address(const void* address, int64_t element_bytes, int unit) {
  const auto bytes = static_cast<uintptr_t>(element_bytes);
  while (unit > 1 && reinterpret_cast<uintptr_t>(address) % (unit * bytes) != 0) unit /= 2;
  return unit;
}

inline bool is_aligned(const void* address, DType dtype, int elements) {
  return fit_unit_to_address(address, size_of(dtype), elements) == elements;
}
// Whether the address suits the widest loads and bulk copies: 16 bytes.
inline bool is_unit_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

// 1, 2, 3, 4, 6, 8, 12, 16, ...: the tile sizes that searches try.
inline int64_t next_size(int64_t size) {
  if (size < 4) return size + 1;
  return (size & (size - 1)) == 0 ? size / 2 * 3 : size / 3 * 4;
}

}  // namespace convx
