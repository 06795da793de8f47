// Weight gradients of NCHW tensors read in place: how rows of pixels are cut into steps.
//
// With columns adjacent in memory both operands are K-major as they lie there: a filter's output
// row, and a channel's input row, are runs of the reduction. Nothing is transposed; only the taps
// of a kernel row need copies of the input row that are shifted by their columns.
//
//   step:     kStepPixels columns of one output row p, the reduction of 4 MMAs
//   segment:  those columns in all rows
//   run:      up to run_rows output rows of one segment, of one image. A step reads the input rows
//             p * stride.h + r * dilation.h - top; the next step reads most of them again, so they
//             stay in a ring in shared memory until the run has passed them.
// A split-K slice is a range of runs; segments are innermost, so that the cache lines that two
// segments share are still in L2 when the second one is read.
#pragma once

#include "core/fast_divmod.h"
#include "core/problem.h"
#include "engines/cuda/weight_grad/operand_form.h"

namespace convx {

inline constexpr int kStepPixels = 64;
inline constexpr int kBoxRowBytes = 128;  // of a row in a TMA box, the reduction of 4 MMAs
inline constexpr int kBoxRows = 64;       // filters or channels of a box
inline constexpr int kBoxWarpgroups = 4;  // consumers that a block that reads boxes has at most
inline constexpr int kBoxColumns[] = {64, 128};  // of a warpgroup's tile
inline constexpr int kRowWarpgroups = 2;         // consumers that a block has at most
inline constexpr int kRowLoaderWarps = 4;        // warps that copy raw rows into shared memory
inline constexpr int kRowBuilderWarps = 4;       // warps that make the shifted input rows of them
inline constexpr int kBuiltTogether = 4;
inline constexpr int kRowProducerThreads = 32 * (kRowLoaderWarps + kRowBuilderWarps);

// Accumulators of a warpgroup: so many tap groups of 64 filters by `columns`.
struct RowTile {
  int columns, groups;

  bool operator==(const RowTile&) const = default;

  // Whether registers hold two sets of a tap group's accumulators besides the sums of a split form:
  // a warpgroup then adds one set while its MMAs fill the other one.
  constexpr bool has_two_sets() const { return (groups + 2) * columns / 2 <= 128; }
};

// The tiles that kernels are compiled for. Split forms hold the accumulators of one tap group
// besides the sums of all, or two sets of them where columns are few.
inline constexpr RowTile kPlainRowTiles[] = {{64, 3}, {96, 3}, {128, 2}};
inline constexpr RowTile kSplitRowTiles[] = {{48, 3}, {64, 3}, {96, 2}};

template <OperandForm kForm>
constexpr const auto& row_tiles_of() {
  if constexpr (count_components(kForm) == 1) {
    return kPlainRowTiles;
  } else {
    return kSplitRowTiles;
  }
}

struct RowTiles {
  int segments;             // of an output row
  int run_rows, run_bands;  // output rows of a run, and runs of a segment in an image
  FastDivmod by_segments, by_run_bands;
  // Neighbouring taps of a kernel row read neighbouring pixels: builders load those once for
  // kBuiltTogether taps.
  bool taps_are_neighbours;
  int piece_pixels;    // of an input row, that a step's builders load
  int block_channels;  // input channels of a block, of all its sets
  // The block's channels are cut into so many equal sets, each of which has its own warpgroups and
  // is a tile of the grid of partial sums.
  int channel_sets;
  int warpgroup_groups;  // tap groups that a warpgroup accumulates
  int ring_rows;         // input rows in shared memory, as MMAs read them
  int input_stages;      // raw input rows
  int input_pitch;       // bytes of a channel's raw row

  // Bytes that one cp.async copies, 4, 8 or 16: what all rows of the tensor are aligned to. The
  // launch sets them, because they depend on the tensors' addresses.
  int gradient_unit, input_unit;
  int input_shift;  // pixels of a raw input row before the first one that a step needs

  constexpr int set_channels() const { return block_channels / channel_sets; }
  // Bytes of one input row in the ring, in one component: [channel set][kernel column][channel].
  constexpr int slot_bytes(int kernel_columns) const {
    return kernel_columns * block_channels * 2 * kStepPixels;
  }
};

// Raw rows of dY: 16-bit ones are A operands, swizzled; float32 ones go through registers, and
// their pitch puts the 8-byte loads of four rows into different banks.
constexpr int gradient_pitch(int element_bytes) {
  return element_bytes == 2 ? 2 * kStepPixels : 4 * kStepPixels + 32;
}

// Raw rows of X: an odd number of 16-byte units, so that the 16-byte loads of 8 rows are in
// different banks. Builders load whole units, from the step's first pixel minus the shift on.
constexpr int input_pitch(int pixels, int element_bytes) {
  const int most_shift = 16 / element_bytes - 1;
  return (((pixels + most_shift) * element_bytes / 16 + 1) | 1) * 16;
}

// Bytes that every row of a tensor is aligned to, at most 16.
constexpr int find_copy_unit(int64_t address, const Strides& strides, int element_bytes) {
  const int64_t bits = address | strides.n * element_bytes | strides.c * element_bytes |
                       strides.h * element_bytes | 16;
  return static_cast<int>(bits & -bits);
}

}  // namespace convx
