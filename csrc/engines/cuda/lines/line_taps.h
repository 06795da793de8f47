// Where the taps of a phase lie on the line (window_shape.h). Plain host code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "core/arithmetic.h"
#include "engines/cuda/lines/window_shape.h"
#include "planning/gather_axis.h"

namespace convx {

inline int64_t floor_div(int64_t a, int64_t b) { return (a - floor_mod(a, b)) / b; }

inline int64_t place_of(const std::vector<int64_t>& phases, int64_t phase) {
  return std::find(phases.begin(), phases.end(), phase) - phases.begin();
}

// The residues of the source that the taps of an axis read, and how far the taps reach from a
// position of the line.
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

class LineTaps {
 public:
  LineTaps(const GatherAxis& rows, const GatherAxis& columns)
      : row_reach(rows), column_reach(columns), rows_(rows), columns_(columns) {}

  const AxisReach row_reach, column_reach;

  // Rows of the line from a tile's first row to those that a kernel row reads.
  int64_t rows_down(int64_t kernel_row) const {
    const int64_t offset = rows_.offset0 + kernel_row * rows_.offset_step;
    return floor_div(offset, rows_.source_step) - row_reach.first;
  }

  // The shift of the last segment: a segment of a later kernel row is not above an earlier one's.
  int64_t find_last_shift(const WindowShape& shape) const {
    if (!shape.by_rows) return 0;
    const int64_t kernel_rows = shape.segment_count / std::ssize(column_reach.phases);
    return rows_down(kernel_rows - 1) * shape.pitch;
  }

  void fill_segments(WindowShape& shape) const {
    const auto& row_phases = row_reach.phases;
    const auto& column_phases = column_reach.phases;
    for (size_t i = 0; i < shape.segments.size(); ++i) {
      WindowSegment& segment = shape.segments[i];
      int64_t row_phase = static_cast<int64_t>(i / column_phases.size());
      segment.row_phase = static_cast<int>(row_phases[row_phase % row_phases.size()]);
      if (shape.by_rows) {
        const int64_t offset = rows_.offset0 + row_phase * rows_.offset_step;
        const int64_t down = rows_down(row_phase);
        segment.shift = static_cast<int>(down * shape.pitch);
        segment.rows_down = static_cast<int>(down);
        segment.row_phase = static_cast<int>(floor_mod(offset, rows_.source_step));
        // A segment between the rows of the two windows may be read by no tap, and then may have no
        // line. Any line will do.
        row_phase = place_of(row_phases, segment.row_phase) % std::ssize(row_phases);
      }
      const size_t column_phase = i % column_phases.size();
      segment.column_phase = static_cast<int>(column_phases[column_phase]);
      segment.line = static_cast<int>(row_phase * std::ssize(column_phases) + column_phase);
    }
  }

  void fill_taps(WindowShape& shape) const {
    for (int64_t i = 0; i < rows_.taps; ++i) {
      const int64_t row_offset = rows_.offset0 + i * rows_.offset_step;
      const int64_t down = rows_down(i);
      for (int64_t j = 0; j < columns_.taps; ++j) {
        const int64_t offset = columns_.offset0 + j * columns_.offset_step;
        const int64_t right = floor_div(offset, columns_.source_step) - column_reach.first;
        const int64_t column =
            place_of(column_reach.phases, floor_mod(offset, columns_.source_step));
        const int64_t row =
            shape.by_rows ? i
                          : place_of(row_reach.phases, floor_mod(row_offset, rows_.source_step));
        const int64_t segment = row * std::ssize(column_reach.phases) + column;
        const int64_t shift = (shape.by_rows ? 0 : down * shape.pitch) + right;
        shape.tap_positions.push_back(static_cast<int>(segment * shape.segment_length + shift));
      }
    }
  }

 private:
  const GatherAxis rows_, columns_;
};

}  // namespace convx
