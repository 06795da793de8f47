// Convolution with pixels as the rows of a product, gathered into registers: the geometry.
//
// Target pixels of all images are one line: image after image, row after row. A tile is a run of
// them by some filters,
//
//     sums[pixel][filter] = sum over steps and k of  gathered[pixel][k] * packed[filter][k] ,
//
// where a step's k are some channels of one tap or, where channels are few, taps and channels.
// Source values that a tile's pixels look at are staged in shared memory, zeros for those outside
// the image, such that each tap lies at a constant distance from a pixel's first:
//
//     place(pixel, channel, tap) = base(pixel) + channel * channel_pitch + distance(tap)
//
// Rows are staged in one of two ways:
//   bands     whole source rows, for tiles of several target rows; a band per image
//   segments  the tile is cut where target rows end; a staged row is what one kernel row sees of
//             all segments, side by side
//
// In kIeee, kHalfIeee and kHalfTf32, where taps are part of k, dilation is one and the stride even,
// every pixel sees its taps in the same pairs of neighbouring columns. Such pairs are split when
// they are staged, and gathered as words that are multiplied as they are: a value is split once,
// not once per tap.
#pragma once

#include <cstdint>
#include <span>

#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/gather_axis.h"
#include "engines/tensor_math.h"

namespace convx {

inline constexpr int kPixelBlock = 64;    // rows of one warpgroup's product
inline constexpr int kStoreFilters = 32;  // that are staged and stored at a time
inline constexpr int kStepBytes = 32;     // of the reduction, in one product
// Two neighbouring positions as a staged pair: a word of each part, [pair][part][2].
constexpr bool can_be_paired(TensorMath math) { return math == TensorMath::kIeee || is_half(math); }
constexpr int pair_bytes(TensorMath math) { return 4 * count_planes(math); }

// kHalfIeee: steps summed by the tensor cores in one chain. They truncate, so long chains drift
// towards zero.
inline constexpr int kPixelHalfChain = 8;
// Registers for totals beside the chain are left where a thread's window is of so few filters by
// blocks; others only do where the whole reduction is one chain.
constexpr bool has_half_totals(int filters, int blocks) { return filters * blocks <= 96; }
inline constexpr int kMaxPixelHalfChain = 12;

// k of a step.
constexpr int step_depth(TensorMath math) { return kStepBytes / operand_bytes(math); }
// Of these, what a thread gathers per pixel.
constexpr int gathered_depth(TensorMath math) { return step_depth(math) / 4; }
inline constexpr int kPairDepth = gathered_depth(TensorMath::kIeee) / 2;  // in pairs

// Elements from filter to filter where a warpgroup's sums are staged: filters fall on different
// banks, rows are aligned to 16 bytes, and there is room to shift a row by less than 16 bytes.
constexpr int staging_elements(int pixels, int element_bytes) {
  return pixels + 16 / element_bytes;
}

struct PixelShape {
  TensorMath math = TensorMath::kTf32;
  GatherAxis rows_axis, columns_axis;

  // The tile: two warpgroups, each a window of blocks * kPixelBlock pixels.
  int filters = 0;  // of a tile; 0: there is no shape
  int blocks = 1;
  int window_step = 0;     // pixels from window to window; less than it has: they overlap
  bool per_image = false;  // windows start anew with every image
  int64_t pixel_tiles = 0;
  int filter_tiles = 1;  // per group
  int splits = 1;        // parts of the reduction

  // Staged source values, in positions.
  bool bands = false;
  bool channels_last = false;  // channels of a position are neighbours, not positions
  int vector = 1;              // elements copied at a time
  int span = 0;                // columns that the last tap looks further right
  int row_pitch = 0, staged_rows = 0;
  int image_rows = 0;  // of a band that has a whole image
  int segment = 0;     // positions of a segment that is a whole row
  // In elements.
  int position_pitch = 1, channel_pitch = 0;

  // The pipeline.
  bool folded = false;     // taps are part of k
  bool paired = false;     // and neighbouring columns are staged as split pairs
  int row_pairs = 0;       // of a kernel row
  int channels = 0;        // of the reduction, per group
  int chunk_channels = 0;  // staged at a time
  int chunks = 0;
  int steps = 0;         // of a chunk
  int stage_steps = 1;   // steps per stage of filters
  int stage_chunks = 1;  // chunks per stage of source values
  int source_stages = 2, filter_stages = 2;
  bool resident = false;  // all filters stay in shared memory
  int grid = 1;
  int blocks_per_sm = 1;

  // Bytes from the start of shared memory.
  int source_stage_bytes = 0;
  int staging_offset = 0, source_offset = 0, filter_offset = 0, shared_bytes = 0;
  int64_t packed_bytes = 0, partial_bytes = 0;
  double microseconds = 0;

  int window_pixels() const { return blocks * kPixelBlock; }
  int positions() const { return staged_rows * row_pitch; }
  int entries() const { return channels_last ? positions() : positions() / vector; }
  int step_bytes() const { return filters * count_planes(math) * kStepBytes; }
  // What a thread looks up per step of the table of distances.
  int table_depth() const {
    if (!folded) return 0;
    return paired ? kPairDepth : gathered_depth(math);
  }
};

// What differs from engine to engine.
struct PixelTiling {
  struct Tile {
    int filters, blocks;
    bool folded;
    bool paired = false;
  };
  TensorMath math;
  std::span<const Tile> tiles;  // that kernels are compiled for
  // Lays out the pipeline and what goes before it in shared memory; false if there is no room.
  bool (*fit_shared_memory)(const ConvProblem&, const DeviceCaps&, PixelShape&);
  double (*predict_microseconds)(const ConvProblem&, const DeviceCaps&, const PixelShape&);
};

// The best shape for one phase of the problem.
PixelShape fit_pixel_shape(const ConvProblem& problem, const DeviceCaps& caps,
                           const GatherAxis& rows, const GatherAxis& columns,
                           const PixelTiling& tiling);

}  // namespace convx
