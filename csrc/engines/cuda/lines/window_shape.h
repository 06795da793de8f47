// The geometry of cuda_lines: convolution as a GEMM over tiles of a flattened, padded image.
//
// The source image, with its zero padding, is cut into strips of columns and flattened into one
// line of positions, image after image, strip after strip, row after row:
//
//     position = ((image * strips + strip) * rows + row) * pitch + column
//
// Target pixels lie on the same line: target (row, column) is at that position. Some positions
// between rows and between images belong to no pixel. On the line, a tap is a shift by a constant,
//
//     shift of tap (r, s) = (rows it looks down) * pitch + (columns it looks right)
//
// so a window, which is a pixel tile of kColumns consecutive positions, is the B operand of an MMA,
// and every tap reads the same window from another start address. Zeros at the end of a row also
// serve as the zeros before the next row: a 7 x 7 image with padding 1 has a pitch of 8 and 8 rows.
//
//     +--- window: kColumns positions ---+
//     x x x x x x x x x x . x x x x x x x x x x .      x: a target pixel   .: none
//       +--- the same window, one tap to the right ---+
//
// With a stride, the positions of a line are target positions, and each residue of the source
// coordinates modulo the stride has its own line (row_phase, column_phase): tap (r, s) reads the
// line of its residue.
//
// A block computes one tile at a time: two windows with the same 64 filters, or one window with 128
// filters. A tile's stage in shared memory holds the positions that its windows and taps reach: one
// segment per line or, where rows are longer than windows, one segment per kernel row.
//
// prepare_kernel writes the lines to the workspace in the layout of a stage, channels innermost and
// swizzled, so a stage is filled by a few bulk copies. This moves the source's bytes twice more,
// but costs nothing per tap. It was faster than transposing NCHW planes in every tile, except on a
// few large images, where it was equal.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/device_caps.h"
#include "core/problem.h"
#include "planning/gather_axis.h"
#include "planning/tensor_math.h"

namespace convx {

inline constexpr int kWindowFilters = 64;      // filters (rows) of one warpgroup's MMA
inline constexpr int kMaxWindowTaps = 256;     // taps of a kernel
inline constexpr int kMaxWindowSegments = 64;  // segments of a tile
inline constexpr int kMaxWindowSplits = 8;     // split-K slices
// Reduction steps (32 bytes of channels, one tap) in one accumulation chain. The tensor cores
// truncate, so long chains drift towards zero. A step is six additions in kIeee, one in kHalfIeee.
// Short reductions get shorter chains, because their reference has smaller errors too.
inline constexpr int kIeeeChainSteps = 4;
inline constexpr int kHalfChainSteps = 9;
inline constexpr int kShortHalfChainSteps = 5;
inline constexpr int kShortReductionSteps = 16;
// Taps whose MMAs form one wgmma group. A warp needs about as long to prepare a group as the tensor
// cores need for four MMAs, so groups should be longer than that. 3 x 3 taps are the most common
// kernel.
inline constexpr int kMaxBatchTaps = 9;
// The swizzle permutes 16-byte units within 8 positions, so copies of a line start at a multiple.
inline constexpr int kLineAlignment = 8;
// A window covers pixels of at most kMaxRuns images, one run of pixels per image. That holds
// because pixels are staged as runs only if an image has at least kMinRunPositions positions.
inline constexpr int kMaxRuns = 3;
inline constexpr int kStreamRuns = 2;  // of streaming blocks (Pace::kStream, kCarry)
inline constexpr int kMinRunPositions = 128;

inline constexpr int kTileAlignment = 1024;  // bytes; swizzled stages start at a multiple of it
// Bytes of 64 filters of one pixel in 16 bits, when they are stored by TMA: the swizzle width.
inline constexpr int kBoxedFilterBytes = 128;

// How a persistent block goes along the line.
//   kTiles   It takes every gridDim.x-th tile.
//   kStream  It streams: it takes neighbouring tiles of its own section of the line
//            (line_stream.cuh).
//   kCarry   It streams, and the values of each filter behind its last whole kCarriedBytes of
//            memory wait in the staging buffer for the next tile. So every store is whole, and no
//            window repeats columns of the next one.
enum class Pace { kTiles, kStream, kCarry };
inline constexpr int kCarriedBytes = 64;  // bytes of memory that are stored as a whole

// Streaming blocks have windows of kStreamColumns positions that cover at most two images, and
// positions of kStreamLaneBytes. They transpose kStretchBytes of each source row at a time. The raw
// copy of a stretch is up to 16 bytes longer at each end, because bulk copies start and end at
// multiples of 16 bytes.
inline constexpr int kStreamColumns = 256;
inline constexpr int kStreamLaneBytes = 32;
inline constexpr int kStretchBytes = 256;
inline constexpr int kRawPitchBytes = kStretchBytes + 2 * 16;
inline constexpr int kMaxStretches = 48;  // in the ring; each has two barriers
inline constexpr int kMaxRawStretches = 3;

// The accumulators of a window are staged as one range of columns ("part"), or as two if they have
// more than kMaxStagedBytes per filter: otherwise wide windows, which have the best MMA rate, would
// not fit. Neighbouring parts share some columns, so that each filter's pixels can be divided at a
// 32-byte sector boundary. Neighbouring windows may share columns for the same reason.
inline constexpr int kMaxStagedBytes = 512;
constexpr int staging_parts(int columns, int element_bytes) {
  return columns * element_bytes > kMaxStagedBytes ? 2 : 1;
}
constexpr int shared_columns(int element_bytes, Pace pace = Pace::kTiles) {
  return pace == Pace::kCarry ? 0 : element_bytes == 4 ? 16 : 24;
}
// Columns from the start of one part to the start of the next.
constexpr int part_columns(int columns, int element_bytes, Pace pace) {
  return (columns - shared_columns(element_bytes, pace)) / staging_parts(columns, element_bytes);
}
constexpr int staging_columns(int columns, int element_bytes, Pace pace) {
  return part_columns(columns, element_bytes, pace) + shared_columns(element_bytes, pace);
}
// The most positions from a part's end to the end of the sector there: all pixels of a sector but
// one, and the gaps between the rows that they lie in. Dividing at sectors needs at least this many
// shared columns.
constexpr int64_t sector_positions(int element_bytes, int64_t width, int64_t pitch) {
  const int64_t pixels = 32 / element_bytes - 1;
  return pixels + (pixels + width - 1) / width * (pitch - width);
}
// The alignment in bytes of a window's first staged run. Later runs are aligned to 16 bytes.
constexpr int run_alignment(Pace pace) { return pace == Pace::kCarry ? kCarriedBytes : 32; }
// Bytes from one staged filter to the next: the columns, and room to align the runs. It is an odd
// number of sectors, so that the filters of a warp's store fall on different banks.
constexpr int staging_pitch(int columns, int element_bytes, Pace pace) {
  constexpr int kSector = 32, kUnit = 16;
  const int runs = pace == Pace::kTiles ? kMaxRuns : kStreamRuns;
  const int aligning = run_alignment(pace) + (2 * runs - 2) * kUnit - 2 * runs * element_bytes;
  const int bytes = staging_columns(columns, element_bytes, pace) * element_bytes + aligning;
  return ((bytes + kSector - 1) / kSector | 1) * kSector;
}
// For both warpgroups.
constexpr int staging_bytes(int columns, int element_bytes, Pace pace) {
  return 2 * kWindowFilters * staging_pitch(columns, element_bytes, pace);
}

// Operand formats for which streaming kernels exist.
constexpr bool may_stream(TensorMath math) {
  return count_planes(math) == 1 && operand_bytes(math) == 2;
}
// Operand formats that are multiplied as they are stored, so that TMA can read tiles from the
// source and store results directly (tile_roles.cuh).
constexpr bool may_box(TensorMath math) {
  return math == TensorMath::kBFloat16 || math == TensorMath::kFloat16;
}
// Carrying takes these formats too, because 16-bit results are staged in one part. For 32-bit
// results it was no faster: memory bandwidth limits there.
constexpr bool may_carry(TensorMath math) { return may_box(math); }

// Columns of the windows that kernels are compiled for: the planner chooses from these lists, and
// lines_kernel.cuh instantiates them.
inline constexpr int kWindowColumns[] = {256, 224, 192, 128, 64};
inline constexpr int kIeeeWindowColumns[] = {160, 128, 96, 64};
inline constexpr int kHalfIeeeWindowColumns[] = {96, 64};  // three sets of accumulators

template <TensorMath kMath>
constexpr const auto& window_columns() {
  if constexpr (kMath == TensorMath::kIeee) {
    return kIeeeWindowColumns;
  } else if constexpr (kMath == TensorMath::kHalfIeee) {
    return kHalfIeeeWindowColumns;
  } else {
    return kWindowColumns;
  }
}

inline std::span<const int> list_columns(TensorMath math) {
  return visit_math(
      math, []<TensorMath kMath>() -> std::span<const int> { return window_columns<kMath>(); });
}

class Text;

struct WindowSegment {
  // Positions from the start of the tile to the start of the segment; a multiple of kLineAlignment.
  int shift = 0;
  int row_phase = 0, column_phase = 0;
  int line = 0;       // index of the line, one per residue
  int rows_down = 0;  // rows below the tile's first row
};

struct WindowShape {
  TensorMath math = TensorMath::kTf32;
  GatherAxis rows_axis, columns_axis;

  // Geometry of the line.
  int pitch = 1, rows = 1, strips = 1;
  int strip_columns = 1;              // target columns of a strip
  int row_base = 0, column_base = 0;  // source row and column of position 0, divided by the stride
  int lines = 0;                      // one per residue of the stride
  int images = 0;                     // images whose lines are in the workspace at a time
  // Positions of these images, and zeros behind them for the taps of the last tiles.
  int64_t line_positions = 0;

  // Geometry of the tile.
  int columns = 0;        // kColumns: positions of a window
  int filter_groups = 1;  // 2: the warpgroups share a window, with 64 filters each
  int window_step = 0;    // positions from one window to the next; if < columns, they overlap
  int second_window = 0;  // positions on the line from the first warpgroup's window to the second's
  int second_offset = 0;  // the same within a stage
  bool by_rows = false;   // true: one segment per kernel row; false: one per line
  // If not 0, a window ends with its row, and the second warpgroup's window is pair_rows rows below
  // the first one's. The next two fields are used only then.
  int pair_rows = 0;
  int column_windows = 1;   // windows across a row
  int pairs_per_image = 1;  // pairs of rows in an image
  int64_t pixel_tiles = 0;  // tiles along the positions of all images
  int filter_tiles = 1;     // tiles along the filters of a group
  int splits = 1;           // split-K slices
  int segment_count = 0;
  int segment_length = 0;
  // Filled for the chosen shape only.
  std::vector<WindowSegment> segments;
  std::vector<int> tap_positions;  // position in the stage that each tap's window starts at

  // For streaming blocks, which transpose source rows into a ring in shared memory and need no
  // lines in the workspace.
  Pace pace = Pace::kTiles;
  int reach = 0;           // positions that a tile's windows and taps span
  int stretch = 0;         // positions that are transposed at a time
  int ring_positions = 0;  // size of the ring: source_stages stretches
  int raw_stretches = 0;   // prefetch distance of each of the two transposing warps

  // If not 0, TMA reads tiles directly from the source, in boxes of box_columns x box_rows pixels,
  // `boxes` of them per segment. No lines are written to the workspace.
  int box_columns = 0, box_rows = 0, boxes = 0;

  bool stores_boxes = false;  // true: TMA stores a window with 64 filters as one box

  // Geometry of the pipeline. lane_bytes is the width of an operand's row: bytes of channels per
  // position and component, and the swizzle width.
  int lane_bytes = 32;
  int chunk_channels = 8;  // channels in lane_bytes
  int channels = 0;        // channels per group to reduce over
  int chunks = 0;
  int stage_taps = 1;   // taps per filter stage
  int chain_steps = 0;  // accumulation chain length, for kHalfIeee
  int blocks = 1;       // persistent blocks, at most one per SM
  int source_stages = 2, filter_stages = 2;
  bool resident = false;  // true: all filters stay in shared memory

  // Byte offsets in shared memory.
  int table_offset = 0, staging_offset = 0, raw_offset = 0, source_offset = 0, filter_offset = 0;
  int shared_bytes = 0;
  int plane_bytes = 0;  // one component of a source stage
  int64_t packed_bytes = 0, line_bytes = 0, partial_bytes = 0;
  double microseconds = 0;
  // True if the shape might be another one with the workspace that the scales of fp16 take.
  bool depends_on_workspace = false;

  bool streams() const { return pace != Pace::kTiles; }
  int planes() const { return count_planes(math); }
  int taps() const { return static_cast<int>(tap_positions.size()); }
  int windows() const { return filter_groups == 1 ? 2 : 1; }  // windows of a tile
  int tile_step() const { return window_step * windows(); }   // positions from one tile to the next
  int positions() const { return segment_count * segment_length; }

  void describe(Text& out) const;
};

// The shape with the smallest predicted time for one phase of the problem, or one with columns == 0
// if none fits, or none is predicted to take less than give_up_us. math: the operand format.
WindowShape fit_window_shape(const ConvProblem& problem, const DeviceCaps& caps, TensorMath math,
                             const GatherAxis& rows, const GatherAxis& columns,
                             double give_up_us = std::numeric_limits<double>::infinity());

// Without a search, times that no shape of a phase, and no plan of cuda_lines, is predicted to
// beat.
double bound_phase_us(const ConvProblem& problem, const DeviceCaps& caps, const GatherPhase& phase);
double bound_lines_us(const ConvProblem& problem, const DeviceCaps& caps);

// Whether any shape fits, or might fit for a band of the rows, whose lines are shorter. Much faster
// than fit_window_shape.
enum class WindowFitness { kFits, kMayFitInBands, kNeverFits };
WindowFitness check_window_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                 TensorMath math, const GatherAxis& rows,
                                 const GatherAxis& columns);

// Places the barriers, the table of taps and the staging buffer in shared memory. Returns the
// offset behind them.
int place_staging(WindowShape& shape, int64_t taps, int stored_bytes);

// The number of tiles along the positions of `images` images.
int64_t count_pixel_tiles(const WindowShape& shape, int64_t images);

}  // namespace convx
