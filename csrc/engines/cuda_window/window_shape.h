// Convolution by windows of a flattened image: the geometry shared by the tensor-core engines.
//
// The source image, zeros around it included, is cut into strips of columns and flattened into one
// line of positions, image after image, strip after strip, row after row:
//
//     position = ((image * strips + strip) * rows + row) * pitch + column
//
// Target pixels lie on the same line: target (row, column) at that position, with some positions
// between rows and images that belong to no pixel. In this line a tap is a shift by a constant,
//     shift of tap (r, s) = (rows it looks down) * pitch + (columns it looks right) ,
// so a window of consecutive positions is one GEMM operand, and every tap is the same window read
// from another start. Rows that end in zeros share them with the next row's start: an image of 7 x
// 7 with padding 1 has a pitch of 8 and 8 rows.
//
// With stride, positions of the line are target positions, and each residue of the source modulo
// the stride is a line of its own (a phase): tap (r, s) reads its phase's line.
//
//     +--- window: kColumns positions ---+
//     x x x x x x x x x x . x x x x x x x x x x .      x: a target pixel   .: none
//       +--- the same window, one tap to the right ---+
//
// A tile holds the positions its windows and taps reach: one stretch per phase, or, where rows are
// longer than windows, one stretch per kernel row (segments).
#pragma once

#include <cstdint>
#include <vector>

#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/gather_axis.h"
#include "engines/tensor_math.h"

namespace convx {

// How source values are brought in.
enum class WindowLoad : uint8_t {
  kStaged,  // planes without gaps: stretches of them are copied to shared memory, then turned
  kPlanes,  // value by value, of planes with any strides
  kFolded,  // taps are channels: few source channels would leave the tensor cores idle
};

inline constexpr int kWindowFilters = 64;      // rows of one warpgroup's product
inline constexpr int kMaxWindowTaps = 256;     // of a kernel
inline constexpr int kMaxWindowSegments = 64;  // of a tile
inline constexpr int kMaxWindowSpans = 32;
inline constexpr int kMaxWindowCopies = 96;     // of spans and channels, into a stage
inline constexpr int kMaxFoldedChannels = 512;  // taps times channels, where they are folded

// Sums that a thread keeps for a window: kIeee adds chains up outside the tensor cores.
constexpr int count_sums(TensorMath math, int columns) {
  return math == TensorMath::kIeee ? columns : columns / 2;
}
// Of a block. One product of more than 192 columns needs more registers than 512 threads start
// with.
constexpr int count_threads(TensorMath math, int columns) {
  return count_sums(math, columns) <= 96 ? 512 : 384;
}

// A warp that stores stages 8 filters by half its columns, 8 more, and as many as misalignment may
// take; the pitch spreads filters over all banks.
constexpr int staging_pitch(int columns) { return (columns / 2 + 47) / 32 * 32 + 8; }  // floats
constexpr int staging_bytes(int columns) { return 8 * staging_pitch(columns) * 4; }

struct WindowSegment {
  int shift = 0;  // of its first position, from the tile's
  int row_phase = 0, column_phase = 0;
};

struct WindowShape {
  TensorMath math = TensorMath::kTf32;
  GatherAxis rows_axis, columns_axis;

  // The line.
  int pitch = 1, rows = 1, strips = 1;
  int strip_columns = 1;              // target columns of a strip
  int row_base = 0, column_base = 0;  // source row and column, in steps, of position 0
  WindowLoad load = WindowLoad::kPlanes;

  // The tile.
  int columns = 0;          // kColumns: positions of a window
  int filter_groups = 1;    // 2: the two warpgroups share a window and split the filters
  int window_step = 0;      // positions from a window to the next; less than columns: they overlap
  int second_window = 0;    // positions from the first warpgroup's window to the second's
  int second_offset = 0;    // the same, in the tile
  bool by_rows = false;     // segments are kernel rows, else phases
  int pair_rows = 0;        // not 0: the second window lies this many rows below the first
  int column_windows = 1;   // windows across a row, then
  int pairs_per_image = 1;  // pairs of rows of an image, then
  int64_t pixel_tiles = 0;  // tiles of positions
  int filter_tiles = 1;     // tiles of filters, per group
  int splits = 1;           // parts of the reduction
  std::vector<WindowSegment> segments;
  int segment_length = 0;
  // Staged planes: a stage has, for each channel, some zeros and then a slot per span, a stretch of
  // the channel's plane that positions of the tile look at.
  int spans = 0;
  int span_images = 1;  // images that a segment may touch
  int raw_pitch = 0;    // elements from channel to channel
  int raw_stages = 0;
  std::vector<int> tap_positions;  // of each tap's first position, in the tile

  // The pipeline.
  int lane_bytes = 32;     // bytes of the reduction per position: the swizzle's width
  int chunk_channels = 8;  // channels in them
  int channels = 0;        // of the reduction, per group; folded: taps times channels
  int group_sources = 0;   // source channels per group
  int chunks = 0;
  int stage_taps = 1;  // taps per stage of filters
  int threads = 384;   // of a block
  int blocks = 1;      // that share the tiles: one per multiprocessor
  int source_stages = 2, filter_stages = 2;
  bool resident = false;  // all filters stay in shared memory

  // Bytes from the start of shared memory.
  int table_offset = 0, staging_offset = 0, source_offset = 0, filter_offset = 0;
  int raw_offset = 0;
  int shared_bytes = 0;
  int plane_bytes = 0;  // of one plane of a tile of positions
  int64_t packed_bytes = 0, partial_bytes = 0;
  double microseconds = 0;

  int planes() const { return math == TensorMath::kIeee ? 3 : 1; }
  int taps() const { return static_cast<int>(tap_positions.size()); }
  int raw_channels() const { return folded() ? group_sources : chunk_channels; }
  int windows() const { return filter_groups == 1 ? 2 : 1; }  // of a tile
  bool folded() const { return load == WindowLoad::kFolded; }
  int positions() const { return static_cast<int>(segments.size()) * segment_length; }
};

// The best shape for one phase of the problem; columns is 0 where none fits.
WindowShape fit_window_shape(const ConvProblem& problem, const DeviceCaps& caps,
                             const GatherAxis& rows, const GatherAxis& columns);

}  // namespace convx
