// Parameters of the grouped tensor-core kernel. Plain data: filled on the host, in constant memory.
#pragma once

#include <cstdint>

#include "engines/cuda/grouped/grouped_params.h"

namespace convx {

constexpr int kGroupedMmaThreads = 256;
constexpr int kGroupedMmaBlocks = 3;  // per multiprocessor, limited by registers

// An MMA has 16 rows (filters and output rows) x 8 pixels x 4 quads. A cell is its 128 outputs.
constexpr int kProductRows = 16;  // output rows x filters: 4 x 4, 2 x 8 or 1 x 16
constexpr int kOctet = 8;         // columns of a cell
constexpr int kQuadChannels = 4;  // interleaved channels of one pixel: 8 bytes of shared memory
constexpr int kStepQuads = 4;     // quads in the depth of an MMA
constexpr size_t kMostWindowRows = 64;  // source rows that a cell reads
constexpr int kResultChunk = 8;         // outputs per store to global memory: 16 bytes

// Cells below each other that a warp computes at once. Seven of them are 28, 14 or 7 output rows.
constexpr int kManyCells = 7;
constexpr int kFewCells = 4;

constexpr int count_window_rows(int filters) { return kProductRows / filters; }

// Four source channels under one tap. The same for the cells of all groups.
struct alignas(16) TapQuad {
  int offset;       // bytes from a cell's read position
  int source_row;   // counted from the first row that a cell reads
  int16_t channel;  // first of the four
  int16_t column;   // column of the tap
  unsigned rows;    // bit i: row i of the cell has this tap; 0: padding of the last step
};

// A line of shared memory. The same for all images of a block.
struct alignas(16) StagedLine {
  // Column 0 of its first channel, in elements from the first channel of the first group.
  int64_t source;
  int channels;  // existing channels; 0 if the row is padding or not needed
};

// Outputs that are contiguous in the target form a span, and are contiguous in shared memory too.
enum class ResultSpans : uint8_t {
  kTile,     // the whole tile is one span
  kFilters,  // each filter is one span
  kRows,     // each row is one span
};

struct GroupedMmaParams : GroupedTask {
  int16_t source_rows[kMostWindowRows];  // source rows of a cell, relative to its first
  int quads;                             // per pixel: quads of channels
  int window_lines;                      // source rows x quads that a cell reads
  int steps;                             // MMAs of a cell
  int unit, units, first_unit;           // columns per copy; copied units of a line
  int staged_rows;
  int staged_columns;  // pixels of a line that are read
  int line_pitch;      // pixels
  int column_start;    // source column of a line's first pixel for output column 0
  // Bytes between the read positions of groups, cells, octets and pixels. cell_start is for
  // the first cell.
  int cell_start, group_bytes, window_bytes, octet_bytes, pixel_bytes;
  // Pitches of the outputs in shared memory, in elements. They are congruent to the target's
  // strides modulo 16 bytes, so that the phase of the first output fixes the phase of all.
  int row_pitch, filter_pitch;
  int span_chunks;  // 16-byte chunks that a span may touch
  int group_jobs;   // per group
  ResultSpans spans;
  bool pairs;  // two neighbouring columns of outputs are one aligned word
  // Bytes; the lines are at offset 0.
  int places_offset, quads_offset, fragments_offset, bias_offset, results_offset;
  FastDivmod by_units, by_quads, by_staged_rows, by_octets, by_group_jobs, by_steps;
  FastDivmod by_span_chunks, by_tile_rows;
};

}  // namespace convx
