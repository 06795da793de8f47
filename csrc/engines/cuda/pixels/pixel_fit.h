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
#include <vector>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"
#include "planning/gather_axis.h"
#include "planning/half_plan.h"
#include "planning/tensor_math.h"
#include "planning/tensor_params.h"

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

// Taps are folded only if the channels of a group are so few.
inline constexpr int64_t kMostFoldedChannels = 8;

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

// What the kernels receive. The planner fills it in place; flags are 0 or 1.
struct PixelParams : TensorParams {
  int plane = 0, pixels = 0;  // target pixels of one image, and of all images
  int window_step = 0;        // pixels from window to window; smaller than a window: they overlap
  int per_image = 0;          // 1: every image begins a new tile
  int tiles = 0;              // of pixels, filters and split-K slices
  int filter_tiles = 1;       // per group
  int tile_filters = 0;
  int splits = 1;  // split-K slices

  // Staged source values, in positions. An entry of the source table is one position of
  // channels_last tensors, and `vector` positions otherwise.
  int bands = 0;
  int channels_last = 0;           // 1: staged [position][channel]; 0: [channel][position]
  int vector = 1;                  // positions per entry of the source table
  int run = 1, copy_elements = 1;  // contiguous elements of an entry, and elements per copy
  int span = 0;                    // columns from the first to the last tap
  int row_pitch = 0;
  int entries = 0;
  int image_rows = 0;  // rows of a band that holds a whole image
  int segment = 0;     // positions of a segment that is a whole row
  // Pitches in elements.
  int position_pitch = 1, channel_pitch = 0;
  int entry_elements = 0;   // elements from one entry to the next, in a stage
  int entry_copies = 0;     // copies per entry and chunk
  int copy_channels = 0;    // channels from one copy to the next
  int copy_shared = 0;      // elements from one copy to the next, in a stage
  int64_t copy_source = 0;  // elements from one copy to the next, in the source

  // The pipeline.
  int folded = 0;          // 1: k has taps and channels
  int channels = 0;        // channels of the reduction, per group
  int chunk_channels = 0;  // channels staged at a time
  int chunks = 0;
  int steps = 0;        // per chunk
  int stage_steps = 1;  // steps per stage of filters
  int source_stages = 2, filter_stages = 2;
  int resident = 0;  // 1: all filters stay in shared memory
  int source_stage_bytes = 0, filter_stage_bytes = 0, step_bytes = 0;
  int staging_offset = 0, source_offset = 0, filter_offset = 0;  // in shared memory

  FastDivmod by_target_width, by_target_height, by_plane;
  FastDivmod by_row_pitch, by_image_rows, by_segment;
  FastDivmod by_splits, by_filter_tiles_all, by_filter_tiles, by_image_tiles;

  int stage_chunks = 1;  // chunks per stage of source values

  int paired = 0;             // 1: neighbouring columns are staged as split pairs
  int row_pairs = 0;          // pairs per kernel row
  int pair_lead = 0;          // 1: a kernel row's first pair begins one column before it
  int64_t partial_image = 0;  // elements from image to image of a split-K slice
};

// The parameters with what only the host needs. The tensors of TensorParams are not set.
struct PixelShape : PixelParams {
  TensorMath math = TensorMath::kTf32;
  GatherAxis rows_axis, columns_axis;

  // A tile has two windows, one per warpgroup, of blocks * kPixelBlock pixels each.
  int filters = 0;  // per tile; 0: no shape fits
  int blocks = 1;
  int64_t pixel_tiles = 0;
  int staged_rows = 0;
  int grid = 1;
  int blocks_per_sm = 1;
  int shared_bytes = 0;
  int64_t packed_bytes = 0, partial_bytes = 0;
  double microseconds = 0;
  // True if another limit of the workspace might have led to another shape.
  bool depends_on_workspace = false;

  PixelTileSize tile() const { return {filters, blocks, folded != 0, paired != 0}; }
  int window_pixels() const { return blocks * kPixelBlock; }
  int positions() const { return staged_rows * row_pitch; }
  // Entries of the distance table that a thread reads per step.
  int table_depth() const {
    if (!folded) return 0;
    return paired ? kPairDepth : gathered_depth(math);
  }
  void describe(Text& out) const;
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

// A shape, and the parameters that do not depend on the call's buffers.
struct PixelFit {
  PixelShape shape;
  PixelParams params;
};

PixelFit make_pixel_fit(const ConvProblem& problem, PixelShape shape);

// The parameters of a call. offset: start of this launch's part of the workspace.
PixelParams make_pixel_params(const ConvProblem& problem, const PixelFit& fit, Buffers buffers,
                              int64_t offset = 0);

// The phases of a gather (core/gather_view.h), which run one after the other in the same workspace.
struct PixelsPlan {
  static constexpr EngineId kEngines[] = {EngineId::kCudaPixels};

  PhasedPlan<PixelFit> phases;

  void describe(Text& out) const { describe_phases(out, phases); }
};
struct MmaPlan {
  static constexpr EngineId kEngines[] = {EngineId::kCudaMma};

  std::vector<PixelFit> phases;

  void describe(Text& out) const;
};

}  // namespace convx
