// The weight gradient as a matrix product over pixels: the geometry that its kernels receive.
//
//   dW[k][c][r][s] = sum over n, p, q of
//       dY[n][k][p][q] * X[n][c][p*stride.h + r*dilation.h - top][q*stride.w + s*dilation.w - left]
//
// Positions. Output pixels are numbered g = (n * rows + p) * pitch + q, with gaps: rows >= P and
// pitch >= Q. dY' is dY by position, zero in the gaps. X is split by the residue of the tap's
// offset modulo the stride:
//   X'[residue][(n * rows + i) * pitch + j] = X[n][i*stride.h + residue.row - top]
//                                            [j*stride.w + residue.column - left], zero outside.
// A tap then reads the part of its residue at a fixed distance, its shift:
//   dW[k][c][r][s] = sum over g of dY'[g][k] * X'[residue(r, s)][g + shift(r, s)][c].
// Reads past the end of a row see the next row's left border, and past the end of an image the next
// image's top border. The planner makes pitch and rows large enough that those are zeros wherever
// dY' is not.
//
// Packed tensors. In shared memory dY' and X' are rows of 128, 64 or 32 bytes of 16-bit values, one
// row per position, swizzled as wgmma reads them; split operands have such rows per component. TMA
// reads 16-bit tensors in channels_last that way, and float32 ones where warps of the block convert
// them (wgrad_convert.cuh). Others are packed into the workspace before, as
// [tile of channels][position][row_bytes], so that a stage is one bulk copy. A round packs a range
// of positions and multiplies it; several rounds keep the workspace within its limit.
//
// Folding. Where channels times kernel columns are few, a row holds all kernel columns of its
// pixel, [s][c]: a partial im2col that leaves only the kernel's rows as taps.
#pragma once

#include <cstdint>

#include "core/arithmetic.h"
#include "core/problem.h"

namespace convx {

// The forms in which operands reach the tensor cores: as stored, or split into 16-bit components.
enum class OperandForm : uint8_t {
  kBFloat16,      // as stored
  kFloat16,       // as stored
  kScaledFp16,    // float32 times a power of two, rounded to float16: TF32's 11 bits
  kScaledFp16x2,  // the same as the sum of two float16: 22 bits, 3 MMAs a product
  kBf16x2,        // float32 as the sum of two bfloat16: 16 bits in float32's range, 3 MMAs
  kBf16x3,        // float32 as the sum of three bfloat16: 24 bits in float32's range, 6 MMAs
  kTf32,          // float32 that TMA rounds to TF32, for 1x1 layers (row_boxes_kernel.cuh)
};

// weight_grad_launch.cu and wgrad_float32.cu compile the launches of all of them.
inline constexpr OperandForm kOperandForms[] = {
    OperandForm::kBFloat16,     OperandForm::kFloat16, OperandForm::kScaledFp16,
    OperandForm::kScaledFp16x2, OperandForm::kBf16x2,  OperandForm::kBf16x3,
    OperandForm::kTf32};

inline const char* name_of(OperandForm form) {
  constexpr const char* kNames[] = {
      "bfloat16",     "float16",      "scaled fp16", "2 x scaled fp16",
      "2 x bfloat16", "3 x bfloat16", "TF32"};
  return kNames[static_cast<int>(form)];
}

constexpr int count_components(OperandForm form) {
  if (form == OperandForm::kBf16x3) return 3;
  return form == OperandForm::kScaledFp16x2 || form == OperandForm::kBf16x2 ? 2 : 1;
}

// MMAs that one product of split operands takes; those of the smallest components are left out.
constexpr int count_mmas(int components) { return components * (components + 1) / 2; }

constexpr bool is_scaled(OperandForm form) {
  return form == OperandForm::kScaledFp16 || form == OperandForm::kScaledFp16x2;
}

// Whether accumulators are emptied into a second set of registers after every stage: forms of
// strict float32, which must not show that the tensor cores truncate. TF32 tolerates chains of
// MMAs.
constexpr bool promotes_sums(OperandForm form) {
  return form == OperandForm::kScaledFp16x2 || form == OperandForm::kBf16x3;
}

// Whether the row kernel (rows_kernel.cuh) multiplies operands of this form.
constexpr bool has_row_kernel(OperandForm form) {
  return (count_components(form) == 1 && form != OperandForm::kTf32) ||
         form == OperandForm::kScaledFp16x2;
}

// The form whose packing kernel serves operands of this one: 16-bit values are packed as they are.
constexpr OperandForm packing_form(OperandForm form) {
  return form == OperandForm::kFloat16 ? OperandForm::kBFloat16 : form;
}

// Whether TMA makes the form of a tensor in memory (row_boxes_kernel.cuh).
constexpr bool has_row_boxes(OperandForm form) {
  return count_components(form) == 1 && !is_scaled(form);
}

// Whether blocks of the MMA kernel can make the form of float32 tensors (wgrad_convert.cuh).
constexpr bool can_convert(OperandForm form) {
  return form == OperandForm::kScaledFp16 || form == OperandForm::kBf16x2 ||
         form == OperandForm::kBf16x3;
}

// The form that represents every value of the problem's dtype at the problem's precision.
inline OperandForm exact_form(const ConvProblem& problem) {
  if (problem.dtype == DType::kBFloat16) return OperandForm::kBFloat16;
  if (problem.dtype == DType::kFloat16) return OperandForm::kFloat16;
  return problem.precision == Precision::kTf32 ? OperandForm::kBf16x2 : OperandForm::kBf16x3;
}

// The faster form that float32 values of moderate range take.
inline OperandForm scaled_form(const ConvProblem& problem) {
  return problem.precision == Precision::kTf32 ? OperandForm::kScaledFp16
                                               : OperandForm::kScaledFp16x2;
}

inline constexpr int kStagePositions = 64;      // positions of a pipeline stage
inline constexpr int kTileFilters = 64;         // filters of a warpgroup's tile, the M of wgmma
inline constexpr int kGradientRowBytes = 128;   // those filters, 16 bits each
inline constexpr int kPackedBlockBytes = 8192;  // what the packing kernel writes at once
inline constexpr int kStagedAtomGap = 4;        // values between staged atoms (wgrad_store.cuh)
inline constexpr int kMaxClusterSlices = 8;     // blocks of a cluster that every GPU allows
inline constexpr int kConverterWarps = 7;       // with the loading warp, two warpgroups
inline constexpr int kStagingSlotBytes = kStagePositions * kTileFilters * 4;  // a tile in float32
inline constexpr int kMinStagingSlots = 4, kMaxStagingSlots = 8;
inline constexpr int kStagingBarrierOffset = 512;  // of their barriers, behind those of the stages
inline constexpr int kRowAlignment = 4;  // of the row kernel's tensors: cp.async copies 4 bytes
inline constexpr int kMaxTapGroups = 128;
inline constexpr int kMaxWgradTaps = 1024;
inline constexpr int kMaxResidues = 32;

// Rows. NCHW tensors can be read in place (rows_kernel.cuh, row_boxes_kernel.cuh).
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
inline constexpr int kStepPixels = 64;
inline constexpr int kBoxRowBytes = 128;    // of a row in a TMA box, the reduction of 4 MMAs
inline constexpr int kBoxRows = 64;         // filters or channels of a box
inline constexpr int kBoxWarpgroups = 4;    // consumers that a block that reads boxes has at most
inline constexpr int kRowWarpgroups = 2;    // consumers that a block has at most
inline constexpr int kRowLoaderWarps = 4;   // warps that copy raw rows into shared memory
inline constexpr int kRowBuilderWarps = 4;  // warps that make the shifted input rows of them
inline constexpr int kBuiltTogether = 4;
inline constexpr int kRowProducerThreads = 32 * (kRowLoaderWarps + kRowBuilderWarps);

// Accumulators of a warpgroup of the row kernel: so many tap groups of 64 filters by `columns`.
struct RowTile {
  int columns, groups;

  bool operator==(const RowTile&) const = default;

  // Whether registers hold two sets of a tap group's accumulators besides the sums of a split form:
  // a warpgroup then adds one set while its MMAs fill the other one.
  constexpr bool has_two_sets() const { return (groups + 2) * columns / 2 <= 128; }
};

// The tiles that kernels are compiled for: columns of the MMA kernel, widest first, of the kernel
// that TMA boxes feed, and tiles of the row kernel. Split forms of the latter hold the accumulators
// of one tap group besides the sums of all, or two sets of them where columns are few.
inline constexpr int kPlainColumns[] = {256, 224, 192, 160, 128, 96, 64};
inline constexpr int kPromotedColumns[] = {128, 96, 64};  // if promotes_sums
inline constexpr int kNarrowestColumns = 64;
inline constexpr int kBoxColumns[] = {64, 128};
inline constexpr RowTile kPlainRowTiles[] = {{64, 3}, {96, 3}, {128, 2}};
inline constexpr RowTile kSplitRowTiles[] = {{48, 3}, {64, 3}, {96, 2}};

template <OperandForm kForm>
constexpr const auto& columns_of() {
  if constexpr (promotes_sums(kForm)) {
    return kPromotedColumns;
  } else {
    return kPlainColumns;
  }
}

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

// Consumer warpgroups that a block has at most: registers for the accumulators decide. Forms that
// promote them have two sets, and blocks that convert have more warps besides the consumers.
constexpr int max_consumers(int columns, OperandForm form, bool converts) {
  const int accumulated = columns * (promotes_sums(form) ? 2 : 1);
  if (converts) return accumulated <= 128 ? 3 : accumulated <= 192 ? 2 : 1;
  return accumulated <= 192 ? 3 : 2;
}

inline constexpr int kMostConsumers = 3;
inline constexpr int kProducerThreads = 64;  // a warp for each operand
// Blocks that convert their operands have converter warps, and one warp that loads.
inline constexpr int kConvertingThreads = 32 * (kConverterWarps + 1);

enum class PackedSide : uint8_t { kInput, kGradient };  // X', dY'

// How an operand reaches shared memory.
enum class OperandSource : uint8_t {
  kPacked,  // a kernel before packs it into the workspace, and bulk copies bring it from there
  kPixels,  // TMA in im2col mode, from the tensor itself: 16 bits in channels_last
  // TMA brings float32 pixels into a staging ring, from which warps of the block convert them
  // (wgrad_convert.cuh). This is the source of both operands, or of none.
  kConverted,
  kRows,  // the row kernel reads both tensors in place: NCHW
  // TMA reads rows of both tensors as the MMAs multiply them: 1x1 layers in NCHW
  // (row_boxes_kernel.cuh).
  kRowBoxes,
};

// What the atoms of columns in one MMA are: B is made of atoms of 16, 32 or 64 channels at equal
// distances in shared memory.
enum class AtomAxis : uint8_t {
  kKernelColumns,  // neighbouring taps of a kernel row: the same rows, shifted, so atoms overlap
  kKernelRows,     // neighbouring taps of a kernel column
  kChannels,       // tiles of channels, for a single tap
};

// Taps that one warpgroup accumulates: consecutive ones of the same residue along the atoms' axis.
struct TapGroup {
  int shift;  // of the first tap, in positions
  short residue;
  short taps;  // the MMA may have more atoms; what they accumulate is dropped
  short r, s;  // the first tap
};

struct StrideResidue {
  int row, column;
};

struct WgradGeometry {
  // The problem.
  int images, height, width, out_height, out_width;
  int channels, filters, group_channels, group_filters;
  int kernel_rows, kernel_columns;  // R, S
  FastDivmod by_kernel_rows, by_kernel_columns, by_group_channels, by_group_filters;
  int stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
  Strides x_strides, y_strides, w_strides;

  OperandSource input_source, gradient_source;

  // Positions.
  int pitch, rows;
  int packed_left;  // pad_left, or one more, so that pairs of neighbouring pixels are aligned
  // The pixels of positions 2i and 2i + 1 are neighbours in memory, both inside or both outside.
  bool input_has_pairs, gradient_has_pairs;
  FastDivmod by_pitch, by_rows;
  // Every image is one stage, and dY' is zero in its last 8 positions, which MMAs of one component
  // leave out, unless the block converts its operands.
  bool images_end_in_gaps;
  bool folds_columns;
  int packed_channels;  // columns that a packed row of X' has: C, or S * C where folded
  int residue_count;
  StrideResidue residues[kMaxResidues];

  // Tap groups, sorted by residue and shift. A block takes those of one entry of block_groups.
  AtomAxis atom_axis;
  int atom_channels, row_bytes;  // of X', 2 * atom_channels
  int atom_bits;                 // log2(atom_channels)
  int atom_shift;                // positions between the taps of neighbouring atoms
  int atom_r, atom_s;            // steps of (r, s) between them
  int group_count, group_blocks;
  TapGroup groups[kMaxTapGroups];
  short block_groups[kMaxTapGroups + 1];  // the first group of each block, and the end

  // Blocks. Consumer warpgroup i takes filter tile i / block_tap_groups of the block, and tap group
  // i % block_tap_groups.
  int columns;  // N of an MMA
  int block_filter_tiles, block_tap_groups, block_channel_tiles;
  FastDivmod by_block_filter_tiles, by_block_channel_tiles, by_group_blocks, by_channel_blocks;
  FastDivmod by_grid_minor;  // blocks are [tile][slice] if writes_result, else [slice][block]
  int filter_tiles, channel_tiles;
  int filter_blocks, channel_blocks;  // channel_blocks: per block of filters
  int stages;                         // of dY'
  int ring_stages;                    // of X', without
  int mirrored_stages;                // the first ones again, behind the ring's end
  int halo_stages;                    // of X' that a stage of dY' needs beyond its own
  int flush_stages;                   // MMAs accumulate over so many stages at most
  int staging_slots;                  // of the staging ring, if operands are converted
  int slices;                         // split-K
  // Slice i has the stages i, i + slices, ..., so that blocks that run at the same time read
  // neighbouring memory. Otherwise a slice's stages follow each other, and share halos.
  bool takes_turns;
  // The slices of a tile are the blocks of a cluster, which add their accumulators and write dW.
  // Otherwise partial sums go to the workspace, and another kernel adds them.
  bool writes_result;
  int staged_row;    // values of a row of staged accumulators
  int table_offset;  // in shared memory, of the table that wgrad_store.cuh describes
  int shared_bytes;

  // OperandSource::kRows, for which a stage is a run of rows, and kRowBoxes, for which it is a
  // step, use this. Others have one channel set.
  RowTiles row_tiles;

  // Rounds.
  int64_t stages_total, round_stages;
  int64_t gradient_rows, input_rows;  // positions of a packed tile, in a round

  // What the addresses of both tensors must be multiples of, in bytes.
  static constexpr int kMostAlignment = 16;
  constexpr int alignment() const {
    if (gradient_source == OperandSource::kRows) return kRowAlignment;
    const bool packs_both =
        input_source == OperandSource::kPacked && gradient_source == OperandSource::kPacked;
    return packs_both ? 1 : kMostAlignment;
  }
  constexpr bool converts() const { return gradient_source == OperandSource::kConverted; }
  // Whether TMA reads both tensors by position, as 16-bit values in channels_last.
  constexpr bool reads_pixels() const {
    return input_source == OperandSource::kPixels && gradient_source == OperandSource::kPixels;
  }
  constexpr int consumers() const { return block_filter_tiles * block_tap_groups; }
  // Warpgroups of a block of the row kernel.
  constexpr int row_warpgroups() const {
    const int tap_sets =
        (block_tap_groups + row_tiles.warpgroup_groups - 1) / row_tiles.warpgroup_groups;
    return block_filter_tiles * row_tiles.channel_sets * tap_sets;
  }
  constexpr int tiles() const { return filter_blocks * channel_blocks * group_blocks; }
  // Blocks of a slice: those of the row kernels have several tiles, one for each channel set.
  constexpr int slice_blocks() const { return tiles() / row_tiles.channel_sets; }
  constexpr int atoms() const { return columns / atom_channels; }
  // Whether channels are neighbours in dW: 1x1 layers, and channels_last.
  // Groups of one channel count by their stride, too: a vector of four columns spans several
  // groups.
  constexpr bool has_adjacent_channels() const { return !folds_columns && w_strides.c == 1; }
  // The size of the table that wgrad_store.cuh describes.
  constexpr int table_bytes() const { return 8 * block_tap_groups * columns; }

  // Partial sums of one slice: [tile][consumer][filter][column].
  constexpr int64_t partial_values() const {
    return int64_t{tiles()} * consumers() * kTileFilters * columns;
  }
  // Bytes of the packed tensors in the workspace; none for a tensor that is read in place.
  constexpr int64_t gradient_bytes(int components) const {
    if (gradient_source != OperandSource::kPacked) return 0;
    return components * filter_tiles * gradient_rows * kGradientRowBytes;
  }
  constexpr int64_t input_bytes(int components) const {
    if (input_source != OperandSource::kPacked) return 0;
    return int64_t{components} * residue_count * channel_tiles * input_rows * row_bytes;
  }
  constexpr int64_t partial_bytes() const {
    return writes_result ? 0 : slices * partial_values() * 4;
  }
};

}  // namespace convx
