// Parameters of the grouped kernels. Plain data: filled on the host, read from constant memory.
#pragma once

#include <cstdint>

#include "core/fast_divmod.h"
#include "planning/cuda_axis.h"
#include "planning/staged_rows.h"

namespace convx {

constexpr int kGroupedThreads = 256;  // per block, at most

// The cell of a thread: 4 rows x 4 columns of 4 or 2 filters.
constexpr int kCellRows = 4;
constexpr int kCellColumns = 4;
constexpr int kManyFilters = 4;
constexpr int kFewFilters = 2;

constexpr int kChunkChannels = 4;  // channels staged at once, at most
constexpr int kMostBuffers = 2;    // buffers for chunks in flight

// How the source columns that a cell reads lie in a line of shared memory.
enum class ColumnWindow : uint8_t {
  // One segment per class of taps (planning/gather_axis.h): windows begin at the cell's column and
  // slide by one per tap. Works for any kernel, stride and dilation.
  kSegments,
  // Source rows as they are, for 3x3 kernels. A cell's window begins one column before a multiple
  // of four, so that rows padded by one column are copied 16 bytes at a time.
  kRows,
  // The same for stride 2 in rows and columns.
  kRowsStride2,
};

constexpr int window_stride(ColumnWindow window) {
  return window == ColumnWindow::kRowsStride2 ? 2 : 1;
}
template <ColumnWindow kWindow>
constexpr int kWindowStride = window_stride(kWindow);

// Resident threads per multiprocessor, limited by their registers: 168 or 128 each.
constexpr int count_resident_threads(ColumnWindow window) {
  return window == ColumnWindow::kSegments ? 384 : 512;
}

// The unit that a thread copies of every chunk. A thread has more than one only if lines are long.
struct alignas(16) StagedUnit {
  int64_t source;  // in the first image's first channel, in elements; may lie outside the image
  int shared;      // in a chunk's first channel, in elements
  int16_t row;     // first line that the thread copies; negative: none
  bool inside;     // the unit lies within the image's columns; units never straddle the edge
};

// Destination of a thread's outputs.
struct alignas(16) CellTarget {
  int64_t first;                   // in the block's first image, in elements
  int16_t filters, rows, columns;  // how many of the cell's exist
};

// Kept in shared memory, because the accumulators need the registers.
struct ThreadPlaces {
  StagedUnit unit;
  CellTarget target;
};

// Parameters that the NCHW kernels share: the tensors and the tile of a block.
struct GroupedTask {
  const void* source;
  const void* weight;
  const void* bias;  // may be null
  void* target;
  int64_t source_n, source_c, source_h;  // columns are contiguous
  int64_t source_group;                  // stride between groups
  int64_t target_n, target_c, target_h;
  int64_t weight_group;  // stride between groups; the others are within one
  int weight_target, weight_source;
  int weight_first, weight_row, weight_column;  // first tap and steps, by increasing offset
  int images, groups;
  int source_channels, target_channels;  // per group
  int source_height, source_width;
  CudaAxis row, column;                   // with one lane (planning/gather_axis.h)
  int tile_groups, tile_rows, tile_cols;  // rows and columns are multiples of a cell's
  int tile_images;                        // images that a block computes in turn
  FastDivmod by_column_tiles, by_row_tiles, by_group_tiles;
};

struct GroupedParams : GroupedTask {
  StagePlan stage;
  int cells;          // cells of a tile, at most one per thread
  int chunk, chunks;  // channels of a chunk; number of chunks
  int buffers;        // buffers for chunks in flight
  // Source column of a line's first element for output column 0; source columns between elements.
  int column_start, column_step;
  int segment_first, segment_columns;              // copied elements of a segment: first and end
  int segment_pitch;                               // elements between segments
  int cell_start;                                  // read position of column 0's cell in a line
  int group_pitch, channel_pitch, buffer_pitch;    // in elements
  int row_step, row_class_step;                    // between rows of a class; between classes
  int class_taps_pitch;                            // column taps of the longest class
  int tap_row_weights;                             // floats between rows of taps
  int channel_weights;                             // floats between channels
  int part_weights;                                // floats between the filters of two cells
  int weights_offset, bias_offset, places_offset;  // bytes
  int store_width;                                 // columns per store: 4, 2 or 1
  FastDivmod by_strips, by_row_groups, by_parts, by_segment_units, by_row_taps, by_channels;
};

}  // namespace convx
