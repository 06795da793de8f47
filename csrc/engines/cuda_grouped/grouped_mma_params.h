// What the grouped kernel for tensor cores is told. Plain data: filled on the host, read from
// constant memory.
#pragma once

#include <cstdint>

#include "engines/cuda_grouped/grouped_params.h"

namespace convx {

constexpr int kGroupedMmaThreads = 256;
constexpr int kGroupedMmaBlocks = 3;  // on a multiprocessor, by registers

// A product has 16 filters and rows by 8 pixels by 4 quads. A cell is the 128 results of it.
constexpr int kProductRows = 16;        // window rows x filters: 4 x 4, 2 x 8 or 1 x 16
constexpr int kOctet = 8;               // columns of a cell
constexpr int kQuadChannels = 4;        // of one pixel, side by side: 8 bytes of shared memory
constexpr int kStepQuads = 4;           // of a product's depth
constexpr size_t kMostWindowRows = 64;  // of the source, that a cell's rows read
constexpr int kResultChunk = 8;  // results that are written to global memory at once: 16 bytes

// Cells that a warp computes at a time, below each other: 28, 14 and 7 rows are sevens of them.
constexpr int kManyCells = 7;
constexpr int kFewCells = 4;

constexpr int count_window_rows(int filters) { return kProductRows / filters; }

// Four channels of the source under one tap, for the cells of all groups.
struct alignas(16) TapQuad {
  int offset;       // bytes from where a cell begins to read
  int source_row;   // from the first that a cell reads
  int16_t channel;  // the first of four
  int16_t column;   // of the taps
  unsigned rows;    // a bit for each of the cell's rows that has such a tap; 0: not a tap at all
};

// A line of shared memory, for all images of a block.
struct alignas(16) StagedLine {
  int64_t source;  // of column 0 of its first channel, from the first group's first one on
  int channels;    // that exist; 0 where the row is padding, or of no use
};

// Which results follow each other in the target, and so in shared memory.
enum class ResultSpans : uint8_t {
  kTile,     // all of the tile's
  kFilters,  // those of a filter
  kRows,     // those of a row
};

struct GroupedMmaParams : GroupedTask {
  int16_t source_rows[kMostWindowRows];  // that a cell reads, from its first on
  int quads;                             // of channels
  int window_lines;                      // source rows x quads that a cell reads
  int steps;                             // products of a cell
  int unit, units, first_unit;           // columns copied at once; those copied of a line
  int staged_rows;
  int staged_columns;  // of a line
  int line_pitch;      // pixels
  int column_start;    // source column of a line's first pixel for output column 0
  // Bytes from where a cell begins to read to where others do; cell_start: the first cell's.
  int cell_start, group_bytes, window_bytes, octet_bytes, pixel_bytes;
  // Of results in shared memory, in elements. Like the target's modulo 16 bytes, so that the first
  // result's place within them decides for all.
  int row_pitch, filter_pitch;
  int span_chunks;  // pieces of 16 bytes that a span may touch
  int group_jobs;   // of one group
  ResultSpans spans;
  bool pairs;  // results of two neighbouring columns are one aligned word
  // Bytes; lines come first.
  int places_offset, quads_offset, fragments_offset, bias_offset, results_offset;
  FastDivmod by_units, by_quads, by_staged_rows, by_octets, by_group_jobs, by_steps;
  FastDivmod by_span_chunks, by_tile_rows;
};

}  // namespace convx
