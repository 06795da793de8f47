// Geometry of the grouped kernels. The planner fills the *Params structs, which are complete except
// for the buffers, and kernels receive them in constant memory. Plain data and host code.
#pragma once

#include <cstdint>
#include <string>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/engine.h"
#include "core/plan.h"
#include "core/problem.h"
#include "planning/gather_axis.h"
#include "planning/staged_rows.h"

namespace convx {

// What a launch needs besides the kernel's parameters.
struct GroupedLaunch {
  int64_t blocks = 0;  // 0: the kernel does not apply, or no tile fits in shared memory
  int64_t shared_bytes = 0;
  int64_t resident = 0;  // blocks per multiprocessor
  double microseconds = 0;
};

// ---- NCHW: both kernels ----

struct GroupedTask {
  const void* source;
  const void* weight;
  const void* bias;           // may be null
  float lowest = kUnbounded;  // that y may be
  void* target;
  int64_t source_n, source_c, source_h;  // in elements, here and below; columns are contiguous
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

// ---- NCHW with FFMA (grouped_kernel.cuh) ----

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
  // Source rows as they are, for 3x3 kernels of stride 2 in rows and columns.
  kRowsStride2,
};

constexpr int window_stride(ColumnWindow window) {
  return window == ColumnWindow::kRowsStride2 ? 2 : 1;
}

// Resident threads per multiprocessor, limited by their registers: 168 or 128 each.
constexpr int count_resident_threads(ColumnWindow window) {
  return window == ColumnWindow::kSegments ? 384 : 512;
}

struct GroupedKernel {
  ColumnWindow window;
  int filters;  // per cell

  bool operator==(const GroupedKernel&) const = default;
};
// The compiled kernels, for each of three types.
inline constexpr GroupedKernel kGroupedKernels[] = {{ColumnWindow::kRows, kManyFilters},
                                                    {ColumnWindow::kRowsStride2, kManyFilters},
                                                    {ColumnWindow::kSegments, kManyFilters},
                                                    {ColumnWindow::kSegments, kFewFilters}};

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
  int set_weights;                                 // floats between the filters of two cells
  int weights_offset, bias_offset, places_offset;  // bytes
  int store_width;                                 // columns per store: 4, 2 or 1
  FastDivmod by_strips, by_row_groups, by_filter_sets, by_segment_units, by_row_taps, by_channels;
};

// ---- NCHW on tensor cores (grouped_mma_kernel.cu) ----

constexpr int kGroupedMmaThreads = 256;
constexpr int kGroupedMmaBlocks = 3;  // per multiprocessor, limited by registers

// An MMA has 16 rows (filters and output rows) x 8 pixels x 4 quads. A cell is its 128 outputs.
constexpr int kMmaRows = 16;      // output rows x filters: 4 x 4, 2 x 8 or 1 x 16
constexpr int kOctet = 8;         // columns of a cell
constexpr int kQuadChannels = 4;  // interleaved channels of one pixel: 8 bytes of shared memory
constexpr int kStepQuads = 4;     // quads in the depth of an MMA
constexpr size_t kMostWindowRows = 64;  // source rows that a cell reads
constexpr int kResultChunk = 8;         // outputs per store to global memory: 16 bytes

// Cells below each other that a warp computes at once. Seven of them are 28, 14 or 7 output rows.
constexpr int kManyCells = 7;
constexpr int kFewCells = 4;

constexpr int count_window_rows(int filters) { return kMmaRows / filters; }

struct GroupedMmaKernel {
  int filters;  // per cell
  int cells;    // per warp

  bool operator==(const GroupedMmaKernel&) const = default;
};
// The compiled kernels, for both 16-bit types.
inline constexpr GroupedMmaKernel kGroupedMmaKernels[] = {{4, kManyCells},  {8, kManyCells},
                                                          {16, kManyCells}, {4, kFewCells},
                                                          {8, kFewCells},   {16, kFewCells}};

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

// ---- channels_last (grouped_pixel_kernel.cuh) ----

constexpr int kPixelQuad = 4;   // channels per load, or outputs per store
constexpr int kPixelStrip = 8;  // neighbouring outputs of a thread
constexpr int kPixelThreads = 256;

struct GroupedPixelParams {
  const void *source, *weight, *bias;
  float lowest = kUnbounded;  // that y may be
  void* target;
  int64_t source_n, source_h, source_w, target_n, target_h, target_w;
  int64_t weight_group, weight_target, weight_source, weight_r, weight_s;
  CudaAxis row, column;
  int source_height, source_width;
  int source_channels, target_channels;  // per group
  int quads;                             // quads of target channels, in all groups
  int block_quads;                       // quads of a block, whose weights are in shared memory
  int quad_blocks;                       // neighbouring blocks that together cover all quads
  int slots;                             // strips that a block computes at once
  int strips;                            // in all images
  bool aligned;                          // loads and stores of a quad are single aligned vectors
  FastDivmod by_block_quads, by_row_strips, by_rows;
};

// ---- Plans ----

struct GroupedMmaFit : GroupedLaunch {
  GroupedMmaParams params{};
  GroupedMmaKernel kernel{};
};
struct GroupedPixelFit : GroupedLaunch {
  GroupedPixelParams params{};
};

struct GroupedFit : GroupedLaunch {
  static constexpr EngineId kEngines[] = {EngineId::kCudaGrouped};

  GroupedParams params{};
  GroupedKernel kernel{ColumnWindow::kSegments, kManyFilters};
  int threads = 0;
  GroupedMmaFit mma;       // if mma.blocks > 0, the tensor-core kernel computes the problem
  GroupedPixelFit pixels;  // if pixels.blocks > 0, the channels_last kernel does

  const GroupedTask& task() const {
    return mma.blocks > 0 ? static_cast<const GroupedTask&>(mma.params) : params;
  }
  void describe(Text& out) const;
};

// Returns whether columns are contiguous in source and target (NCHW). If not, channels must be.
bool has_grouped_planes(const ConvProblem& problem);
// Returns the refusal of the channels_last kernel, or an empty string.
std::string refuse_grouped_pixels(const ConvProblem& problem);
// Returns whether any tile of the NCHW kernel fits. Faster than fit_grouped.
bool fits_grouped(const ConvProblem& problem, const DeviceCaps& caps);

// Fit a forward pass or an input gradient with stride 1 that has not been refused. Without blocks
// if the NCHW kernels are predicted to take give_up_us or longer.
GroupedFit fit_grouped(const ConvProblem& problem, const DeviceCaps& caps,
                       double give_up_us = kNeverGiveUp);
GroupedMmaFit fit_grouped_mma(const ConvProblem& problem, const DeviceCaps& caps,
                              double give_up_us = kNeverGiveUp);
GroupedPixelFit fit_grouped_pixels(const ConvProblem& problem, const DeviceCaps& caps);

// Complete the kernel parameters with the buffers of one call. Their alignment limits the widths of
// copies and stores.
GroupedParams make_grouped_params(const ConvProblem& problem, const GroupedFit& fit,
                                  const Buffers& buffers);
GroupedMmaParams make_grouped_mma_params(const ConvProblem& problem, const GroupedMmaFit& fit,
                                         const Buffers& buffers);
GroupedPixelParams make_grouped_pixel_params(const ConvProblem& problem, const GroupedPixelFit& fit,
                                             const Buffers& buffers);

struct LaunchSite;
// Launches the tensor-core kernel, which is compiled in a file of its own.
void launch_grouped_mma(const LaunchSite& site, const GroupedMmaFit& fit, const Buffers& buffers);

}  // namespace convx
