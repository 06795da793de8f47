// What the grouped kernels are told. Plain data: filled on the host, read from constant memory.
#pragma once

#include <cstdint>

#include "device/fast_divmod.cuh"
#include "engines/cuda_axis.h"
#include "engines/cuda_staging.h"

namespace convx {

constexpr int kGroupedThreads = 256;  // the most of a block

// What a thread computes: a cell of 4 rows and 4 columns of 4 filters, or of 2.
constexpr int kCellRows = 4;
constexpr int kCellColumns = 4;
constexpr int kManyFilters = 4;
constexpr int kFewFilters = 2;

constexpr int kChunkChannels = 4;  // the most that are staged at once
constexpr int kMostBuffers = 2;    // chunks under way

// How the source columns that a cell's taps read lie in a line of shared memory.
enum class ColumnWindow : uint8_t {
  // A segment per class of taps (engines/gather_axis.h): windows begin at a cell's own column and
  // slide by one per tap. Any kernel, stride and dilation.
  kSegments,
  // Source rows as they are, for kernels of 3x3: a cell's window begins one column before a
  // multiple of four, so that rows padded by one column are copied 16 bytes at a time.
  kRows,
  // The same for stride 2, of rows and columns.
  kRowsStride2,
};

constexpr int window_stride(ColumnWindow window) {
  return window == ColumnWindow::kRowsStride2 ? 2 : 1;
}
template <ColumnWindow kWindow>
constexpr int kWindowStride = window_stride(kWindow);

// Threads on a multiprocessor, by registers: 168 or 128 of them each.
constexpr int count_resident_threads(ColumnWindow window) {
  return window == ColumnWindow::kSegments ? 384 : 512;
}

// What a thread copies of every chunk, as a rule.
struct alignas(16) StagedUnit {
  int64_t source;  // of the first image's first channel, in elements; may lie outside the image
  int shared;      // in a chunk's first channel
  int16_t row;     // the first line that the thread copies; negative: none
  bool inside;     // the unit lies in the image's columns; units never straddle the edge
};

// Where a thread's results go.
struct alignas(16) CellTarget {
  int64_t first;                   // in the tile's first image, in elements
  int16_t filters, rows, columns;  // that exist, from the cell's first ones on
};

// Both stand in shared memory: in registers they would be in the way of the sums.
struct ThreadPlaces {
  StagedUnit unit;
  CellTarget target;
};

// What the kernels have in common: the tensors, and what a block computes of them.
struct GroupedTask {
  const void* source;
  const void* weight;
  const void* bias;  // may be null
  void* target;
  int64_t source_n, source_c, source_h;  // columns are neighbours
  int64_t source_group;                  // from group to group
  int64_t target_n, target_c, target_h;
  int64_t weight_group;  // from group to group; what follows, within one
  int weight_target, weight_source;
  int weight_first, weight_row, weight_column;  // first tap, and steps; taps by growing offset
  int images, groups;
  int source_channels, target_channels;  // of a group
  int source_height, source_width;
  CudaAxis row, column;                   // of one lane
  int tile_groups, tile_rows, tile_cols;  // rows and columns are multiples of a cell's
  int tile_images;                        // that a block computes one after the other
  FastDivmod by_column_tiles, by_row_tiles, by_group_tiles;
};

struct GroupedParams : GroupedTask {
  StagePlan stage;
  int cells;          // of a tile, at most one for each thread
  int chunk, chunks;  // channels of a chunk, and how many chunks
  int buffers;        // chunks under way
  // Source column of a line's first element for output column 0, and from one element to the next.
  int column_start, column_step;
  int segment_first, segment_columns;  // elements copied of a segment: the first, and the end
  int segment_pitch;                   // elements from one segment to the next
  int cell_start;                      // where column 0's cell begins to read in a line
  int group_pitch, channel_pitch, buffer_pitch;  // elements of shared memory
  int row_step, row_class_step;  // from one row of a class to the next, from class to class
  int class_taps_pitch;          // column taps of a class, rounded up to the longest
  int tap_row_weights;           // floats from one row of taps to the next
  int channel_weights;           // from channel to channel
  int part_weights;              // from one cell's filters to others'
  int weights_offset, bias_offset, places_offset;  // bytes
  int store_width;  // columns of the target stored at once: 4, 2 or 1
  FastDivmod by_strips, by_row_groups, by_parts, by_segment_units, by_row_taps, by_channels;
};

}  // namespace convx
