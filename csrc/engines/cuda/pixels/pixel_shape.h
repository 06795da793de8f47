// Geometry of convolution with pixels as the rows of an MMA, gathered into registers. cuda_pixels
// and cuda_mma share it.
//
// Target pixels of all images are numbered consecutively, image after image and row after row. A
// tile is a run of them by some filters:
//
//     sum[pixel][filter] = sum over steps and k of  gathered[pixel][k] * packed[filter][k]
//
// The k of a step are some channels of one tap or, if channels are few, taps and channels together
// (folded). The source values that a tile reads are staged in shared memory, with zeros outside of
// the image, so that each tap has a constant distance from a pixel's first tap:
//
//     place(pixel, channel, tap) = base(pixel) + channel * channel_pitch + distance(tap)
//
// Rows are staged in one of two ways:
//
//     bands     whole source rows, for tiles of several target rows; one band per image
//     segments  the tile is cut where target rows end; a staged row has the columns that one kernel
//               row reads, of all segments side by side
//
// Pairs: if k is folded, the dilation is 1 and the stride is even, every pixel sees its taps in the
// same pairs of neighbouring columns. In kIeee, kHalfIeee and kHalfTf32 such pairs are split when
// they are staged and gathered as operand words, so a value is split once, not once per tap.
#pragma once

#include <cstdint>
#include <span>

#include "core/device_caps.h"
#include "core/problem.h"
#include "planning/gather_axis.h"
#include "planning/tensor_math.h"

namespace convx {

inline constexpr int kPixelBlock = 64;    // pixels of one MMA of a warpgroup
inline constexpr int kStoreFilters = 32;  // filters per epilogue pass
inline constexpr int kStepBytes = 32;     // bytes of k per MMA and filter
// A staged pair: two neighbouring positions, one word for each component, [pair][component][2].
constexpr bool can_be_paired(TensorMath math) { return math == TensorMath::kIeee || is_half(math); }
constexpr int pair_bytes(TensorMath math) { return 4 * count_planes(math); }

// kHalfIeee: steps per accumulation chain. Tensor cores truncate, so long chains drift towards
// zero.
inline constexpr int kPixelHalfChain = 8;
// True if a thread has registers for totals beside the chain. Other tiles can be used only if the
// whole reduction is one chain, of at most kMaxPixelHalfChain steps.
constexpr bool has_half_totals(int filters, int blocks) { return filters * blocks <= 96; }
inline constexpr int kMaxPixelHalfChain = 12;

// k of a step.
constexpr int step_depth(TensorMath math) { return kStepBytes / operand_bytes(math); }
// k values that a thread gathers per pixel and step.
constexpr int gathered_depth(TensorMath math) { return step_depth(math) / 4; }
// Pairs that a thread gathers per pixel and step.
inline constexpr int kPairDepth = gathered_depth(TensorMath::kIeee) / 2;

// Elements from one filter to the next in the staging buffer. Filters fall on different banks, rows
// are aligned to 16 bytes, and a row can be shifted by less than 16 bytes.
constexpr int staging_elements(int pixels, int element_bytes) {
  return pixels + 16 / element_bytes;
}

// What a kernel is compiled for; the fields of PixelShape with these names.
struct PixelTileSize {
  int filters, blocks;
  bool folded = false, paired = false;

  bool operator==(const PixelTileSize&) const = default;
};

struct PixelShape {
  TensorMath math = TensorMath::kTf32;
  GatherAxis rows_axis, columns_axis;

  // A tile has two windows, one per warpgroup, of blocks * kPixelBlock pixels each.
  int filters = 0;  // per tile; 0: no shape fits
  int blocks = 1;
  int window_step = 0;     // pixels from window to window; smaller than a window: they overlap
  bool per_image = false;  // true: every image begins a new tile
  int64_t pixel_tiles = 0;
  int filter_tiles = 1;  // per group
  int splits = 1;        // split-K slices

  // Staged source values, in positions.
  bool bands = false;
  bool channels_last = false;  // true: staged [position][channel]; false: [channel][position]
  int vector = 1;              // elements per copy
  int span = 0;                // columns from the first to the last tap
  int row_pitch = 0, staged_rows = 0;
  int image_rows = 0;  // rows of a band that holds a whole image
  int segment = 0;     // positions of a segment that is a whole row
  // Pitches in elements.
  int position_pitch = 1, channel_pitch = 0;

  // The pipeline.
  bool folded = false;     // true: k has taps and channels
  bool paired = false;     // true: neighbouring columns are staged as split pairs
  int row_pairs = 0;       // pairs per kernel row
  int channels = 0;        // channels of the reduction, per group
  int chunk_channels = 0;  // channels staged at a time
  int chunks = 0;
  int steps = 0;         // per chunk
  int stage_steps = 1;   // steps per stage of filters
  int stage_chunks = 1;  // chunks per stage of source values
  int source_stages = 2, filter_stages = 2;
  bool resident = false;  // true: all filters stay in shared memory
  int grid = 1;
  int blocks_per_sm = 1;

  // Byte offsets and sizes in shared memory.
  int source_stage_bytes = 0;
  int staging_offset = 0, source_offset = 0, filter_offset = 0, shared_bytes = 0;
  int64_t packed_bytes = 0, partial_bytes = 0;
  double microseconds = 0;
  // True if another limit of the workspace might have led to another shape.
  bool depends_on_workspace = false;

  PixelTileSize tile() const { return {filters, blocks, folded, paired}; }
  int window_pixels() const { return blocks * kPixelBlock; }
  int positions() const { return staged_rows * row_pitch; }
  int entries() const { return channels_last ? positions() : positions() / vector; }
  int step_bytes() const { return filters * count_planes(math) * kStepBytes; }
  // Entries of the distance table that a thread reads per step.
  int table_depth() const {
    if (!folded) return 0;
    return paired ? kPairDepth : gathered_depth(math);
  }
};

// The parts of the planner that differ between engines.
struct PixelTiling {
  TensorMath math;
  std::span<const PixelTileSize> tiles;  // tiles that kernels are compiled for
  // Lays out shared memory and the pipeline. Returns false if they do not fit.
  bool (*fit_shared_memory)(const ConvProblem&, const DeviceCaps&, PixelShape&);
  double (*predict_microseconds)(const ConvProblem&, const DeviceCaps&, const PixelShape&);
};

// The shape with the smallest prediction for one phase of the problem.
PixelShape fit_pixel_shape(const ConvProblem& problem, const DeviceCaps& caps,
                           const GatherAxis& rows, const GatherAxis& columns,
                           const PixelTiling& tiling);

}  // namespace convx
