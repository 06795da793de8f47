// Convolution by windows of a flattened image.
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
// Lines are written to memory first, with the channels of a position together, in the form of a
// tile in shared memory: what a tile needs is then a few stretches of them, copied as they are.
// That costs the source's bytes twice more, and nothing per tap: against loading planes and turning
// them in each tile it won on all but a few large images, where it was equal.
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

inline constexpr int kWindowFilters = 64;      // rows of one warpgroup's product
inline constexpr int kMaxWindowTaps = 256;     // of a kernel
inline constexpr int kMaxWindowSegments = 64;  // of a tile
// Reduction steps (of 32 bytes and one tap) summed by the tensor cores in one chain: they truncate,
// so long chains drift towards zero. In kIeee each step is six additions, in kHalfIeee one. Short
// reductions have smaller errors to be compared with.
inline constexpr int kIeeeChainSteps = 4;
inline constexpr int kHalfChainSteps = 9;
inline constexpr int kShortHalfChainSteps = 5;
inline constexpr int kShortReductionSteps = 16;
// Taps that are multiplied in one go: preparing a group of products takes a warp about as long as
// the tensor cores take for four, so groups should be longer. 3 x 3 taps are the most common.
inline constexpr int kMaxBatchTaps = 9;
// Positions that the swizzle exchanges: copies of a line start at a multiple of them.
inline constexpr int kLineAlignment = 8;
// Runs of pixels that a window may have, one per image; with fewer positions in an image there
// would be more.
inline constexpr int kMaxRuns = 3;
inline constexpr int kWalkRuns = 2;  // of blocks that walk
inline constexpr int kMinRunPositions = 128;

inline constexpr int kTileAlignment = 1024;  // of a swizzled tile
// Of a window's 64 filters, stored as boxes: the width of their swizzle.
inline constexpr int kBoxedFilterBytes = 128;

// How a block goes along the line: from tile to tile, wherever they are; from neighbour to
// neighbour; or so that what it has of a plane's last piece of memory waits for the next window,
// which has the rest of it. Then every piece is stored once, as a whole, and no window has columns
// of the next.
enum class Pace { kTiles, kWalk, kCarry };
inline constexpr int kCarriedBytes = 64;  // a piece of memory

// Blocks that walk (line_walk.cuh) have windows of so many columns, of at most two images, and
// positions of 32 bytes. They turn so many bytes of a source row at a time; before, a stretch and
// its neighbours up to the next 16 bytes lie as they are.
inline constexpr int kWalkColumns = 256;
inline constexpr int kWalkLaneBytes = 32;
inline constexpr int kStretchBytes = 256;
inline constexpr int kRawPitchBytes = kStretchBytes + 2 * 16;
inline constexpr int kMaxStretches = 48;  // in the ring; each has two barriers
inline constexpr int kMaxRawStretches = 3;

// Sums of a window are staged in one part or, where they are more bytes than this per filter, in
// two, or there would be no room for the wide windows that multiply best. A part has some columns
// of the next as well, so that each filter's pixels can be cut where a 32-byte sector starts; so
// may a window.
inline constexpr int kMaxStagedBytes = 512;
constexpr int staging_parts(int columns, int element_bytes) {
  return columns * element_bytes > kMaxStagedBytes ? 2 : 1;
}
constexpr int shared_columns(int element_bytes, Pace pace = Pace::kTiles) {
  return pace == Pace::kCarry ? 0 : element_bytes == 4 ? 16 : 24;
}
// From a part to the next.
constexpr int part_columns(int columns, int element_bytes, Pace pace) {
  return (columns - shared_columns(element_bytes, pace)) / staging_parts(columns, element_bytes);
}
constexpr int staging_columns(int columns, int element_bytes, Pace pace) {
  return part_columns(columns, element_bytes, pace) + shared_columns(element_bytes, pace);
}
// Positions that what a sector may take of the next part can span: all its pixels but one, and the
// positions between the rows they lie in. Cutting at sectors needs as many columns shared.
constexpr int64_t sector_positions(int element_bytes, int64_t width, int64_t pitch) {
  const int64_t pixels = 32 / element_bytes - 1;
  return pixels + (pixels + width - 1) / width * (pitch - width);
}
// What the first run of a window is aligned to, in bytes; others are to 16.
constexpr int run_alignment(Pace pace) { return pace == Pace::kCarry ? kCarriedBytes : 32; }
// Bytes from filter to filter there: the columns and what aligning runs may take. An odd number of
// sectors, so that filters fall on different banks.
constexpr int staging_pitch(int columns, int element_bytes, Pace pace) {
  constexpr int kSector = 32, kUnit = 16;
  const int runs = pace == Pace::kTiles ? kMaxRuns : kWalkRuns;
  const int aligning = run_alignment(pace) + (2 * runs - 2) * kUnit - 2 * runs * element_bytes;
  const int bytes = staging_columns(columns, element_bytes, pace) * element_bytes + aligning;
  return ((bytes + kSector - 1) / kSector | 1) * kSector;
}
// Of both warpgroups.
constexpr int staging_bytes(int columns, int element_bytes, Pace pace) {
  return 2 * kWindowFilters * staging_pitch(columns, element_bytes, pace);
}

// Of which there are kernels that walk.
constexpr bool may_walk(TensorMath math) {
  return count_planes(math) == 1 && operand_bytes(math) == 2;
}
// Whose values are multiplied as they are stored: they may be read, and results stored, by boxes
// (source_boxes.cuh).
constexpr bool may_box(TensorMath math) {
  return math == TensorMath::kBFloat16 || math == TensorMath::kFloat16;
}
// The same, since a window's 16-bit sums are staged in one part. Of 32 bits carrying was no faster:
// there memory is what limits.
constexpr bool may_carry(TensorMath math) { return may_box(math); }

struct WindowSegment {
  int shift = 0;  // of its first position, from the tile's; a multiple of kLineAlignment
  int row_phase = 0, column_phase = 0;
  int line = 0;       // which of the lines, one per phase
  int rows_down = 0;  // from the tile's first row
};

struct WindowShape {
  TensorMath math = TensorMath::kTf32;
  GatherAxis rows_axis, columns_axis;

  // The line.
  int pitch = 1, rows = 1, strips = 1;
  int strip_columns = 1;              // target columns of a strip
  int row_base = 0, column_base = 0;  // source row and column, in steps, of position 0
  int lines = 0;                      // one per phase
  int images = 0;                     // that are worked on at a time
  int64_t line_positions = 0;         // theirs, and zeros behind for what the last tiles reach

  // The tile.
  int columns = 0;         // kColumns: positions of a window
  int filter_groups = 1;   // 2: the two warpgroups share a window and split the filters
  int window_step = 0;     // positions from a window to the next; less than columns: they overlap
  int second_window = 0;   // positions from the first warpgroup's window to the second's
  int second_offset = 0;   // the same, in the tile
  bool by_rows = false;    // segments are kernel rows, else phases
  int pair_rows = 0;       // not 0: windows end with their rows, the second so many below the first
  int column_windows = 1;  // windows across a row, then
  int pairs_per_image = 1;  // pairs of rows of an image, then
  int64_t pixel_tiles = 0;  // tiles of the positions of images
  int filter_tiles = 1;     // tiles of filters, per group
  int splits = 1;           // parts of the reduction
  std::vector<WindowSegment> segments;
  int segment_length = 0;
  std::vector<int> tap_positions;  // of each tap's first position, in the tile

  // Blocks that walk turn what they reach of the source themselves, into a ring in shared memory:
  // there are no lines in memory.
  Pace pace = Pace::kTiles;
  int reach = 0;           // positions of a tile's windows and taps
  int stretch = 0;         // positions that are turned at a time
  int ring_positions = 0;  // those of source_stages stretches
  int raw_stretches = 0;   // that are copied ahead, by either of two warps

  // Not 0: tiles are read from the source itself, by boxes of so many columns and rows, so many of
  // them per segment; there are no lines in memory.
  int box_columns = 0, box_rows = 0, boxes = 0;

  bool stores_boxes = false;  // a window of 64 filters is stored by one box of the target

  // The pipeline.
  int lane_bytes = 32;     // bytes of the reduction per position: the swizzle's width
  int chunk_channels = 8;  // channels in them
  int channels = 0;        // of the reduction, per group
  int chunks = 0;
  int stage_taps = 1;   // taps per stage of filters
  int chain_steps = 0;  // of a chain, in kHalfIeee
  int blocks = 1;       // that share the tiles: one per multiprocessor
  int source_stages = 2, filter_stages = 2;
  bool resident = false;  // all filters stay in shared memory

  // Bytes from the start of shared memory.
  int table_offset = 0, staging_offset = 0, raw_offset = 0, source_offset = 0, filter_offset = 0;
  int shared_bytes = 0;
  int plane_bytes = 0;  // of one plane of a tile of positions
  int64_t packed_bytes = 0, line_bytes = 0, partial_bytes = 0;
  double microseconds = 0;

  bool walks() const { return pace != Pace::kTiles; }
  int planes() const { return count_planes(math); }
  int taps() const { return static_cast<int>(tap_positions.size()); }
  int windows() const { return filter_groups == 1 ? 2 : 1; }  // of a tile
  int tile_step() const { return window_step * windows(); }   // positions
  int positions() const { return static_cast<int>(segments.size()) * segment_length; }
};

// The best shape for one phase of the problem; columns is 0 where none fits. math: what its values
// are multiplied as.
WindowShape fit_window_shape(const ConvProblem& problem, const DeviceCaps& caps, TensorMath math,
                             const GatherAxis& rows, const GatherAxis& columns);

// Barriers, a table of taps, and then what is staged: sets where, and returns where that ends.
int place_staging(WindowShape& shape, int64_t taps, int stored_bytes);

// Tiles of positions that some images have.
int64_t count_pixel_tiles(const WindowShape& shape, int64_t images);

}  // namespace convx
