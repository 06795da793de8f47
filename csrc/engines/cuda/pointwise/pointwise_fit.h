// Geometry of 1x1 convolution as a product of filters and pixels.
//
// Target pixels of all images are numbered consecutively, image after image and row after row. A
// tile is 128 of them by some filters:
//
//     sum[filter][pixel] = sum over channels of  filters[filter][channel] * source[channel][pixel]
//
// wgmma takes a 16-bit B operand with contiguous pixels, as NCHW has them, so nothing is
// transposed. float32 values are multiplied in 16-bit components, whose products are summed. If the
// values are suitable, components are scaled fp16 (kernels/half_scales.cuh):
//
//     kHalfIeee  two components, three products, up to 160 channels
//     kHalfTf32  one component
//
// Otherwise they are bfloat16:
//
//     kIeee      three components, six products, in accumulation chains of 64 channels
//     kTf32      two components, three products; keeps 16 bits of each value, where TF32 has 11
//
// A block's filters stay in shared memory for all its tiles. Source values pass through a ring of
// chunks of channels, once for all filters of the block.
#pragma once

#include <cstdint>
#include <optional>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"
#include "planning/gather_axis.h"
#include "planning/half_plan.h"
#include "planning/tensor_math.h"
#include "planning/tensor_params.h"

namespace convx {

struct LaunchSite;

// 1x1 layers of NCHW tensors with few filters. Each thread sums 16 bytes of pixels over a quarter
// of the channels, in float32, with every source value read once (few_filters_launch.cu).
inline constexpr int kMaxFewFilters = 8;  // per group
inline constexpr int kFewUnits = 32;      // 16-byte units per block, one per lane
inline constexpr int kFewParts = 4;       // slices of the channels, one per warp
inline constexpr int kFewThreads = kFewParts * kFewUnits;

struct FewFiltersParams {
  const void* source;
  const void* filters;
  const void* bias;           // may be null
  float lowest = kUnbounded;  // that y may be
  void* target;

  // Strides in elements.
  int64_t source_n, source_c, target_n, target_c;
  int64_t filter_target, filter_source, filter_group;

  int units;  // 16-byte units of pixels, of all images
  int channels, part_channels, group_filters;
  FastDivmod by_plane_units;
};

struct FewFiltersFit {
  FewFiltersParams params;
  int64_t groups;
  int shared_bytes;
  double microseconds;
};

// Empty unless the layer has few filters, planes are contiguous in both tensors, and they are whole
// 16-byte units.
std::optional<FewFiltersFit> fit_few_filters(const ConvProblem& problem, const DeviceCaps& caps);

// Empty if a tensor does not start at a multiple of 16 bytes.
std::optional<FewFiltersParams> make_few_filters_params(const ConvProblem& problem,
                                                        const FewFiltersFit& fit,
                                                        const Buffers& buffers);

void launch_few_filters(const LaunchSite& site, const FewFiltersFit& fit,
                        const FewFiltersParams& params);

inline constexpr int kPointwisePixels = 128;   // per tile
inline constexpr int kPointwiseFilters = 64;   // rows of one MMA
inline constexpr int kPointwiseLoaders = 128;  // producer threads, which load source values
// Two consumer warpgroups and the producer warpgroup.
inline constexpr int kPointwiseThreads = 384;
inline constexpr int kPointwiseWarps = 8;      // consumer warps
inline constexpr int kProductDepth = 16;       // channels of one MMA
inline constexpr int kColumnTileBytes = 1024;  // a block of the B operand: 8 channels by 64 pixels
// Bytes from 8 channels to the next 8, in a chunk.
inline constexpr int kOctetBytes = kPointwisePixels / 64 * kColumnTileBytes;
// Filters are stored in rows of this many channels, 128 bytes.
inline constexpr int kFilterChannels = 64;
inline constexpr int kPointwiseBarrierBytes = 512;
inline constexpr int kMaxPointwiseStages = 16;  // each has two mbarriers of 8 bytes
// Raw stages hold source values as they are in memory. Bulk copies fill them; each producer warp
// has a share of every stage, with a barrier of 8 bytes.
inline constexpr int kMaxRawStages = 8;
inline constexpr int kRawShareBytes = 4096;
inline constexpr int kRawStageBytes = kPointwiseLoaders / 32 * kRawShareBytes;

// True if float32 values are split into bfloat16 components.
constexpr bool is_split(TensorMath math) {
  return math == TensorMath::kTf32 || math == TensorMath::kIeee;
}
// True if the tensors are float32.
constexpr bool is_float32(TensorMath math) { return is_split(math) || is_half(math); }
// 16-bit components of a value.
constexpr int pointwise_parts(TensorMath math) {
  return math == TensorMath::kIeee                                    ? 3
         : math == TensorMath::kTf32 || math == TensorMath::kHalfIeee ? 2
                                                                      : 1;
}
constexpr int pointwise_products(TensorMath math) {
  constexpr int kProducts[] = {1, 3, 6};  // products of the smallest components are not needed
  return kProducts[pointwise_parts(math) - 1];
}
// Channels per chunk: each producer thread has eight 16-byte units of it.
constexpr int pointwise_chunk(TensorMath math) { return is_float32(math) ? 32 : 64; }
// Chunks per accumulation chain. Tensor cores truncate, so long chains drift towards zero.
constexpr int chain_chunks(TensorMath math) { return math == TensorMath::kIeee ? 2 : 1; }
// kHalfIeee has no registers for totals beside its two sets of accumulators, so the whole reduction
// must be one accumulation chain: this many MMAs of kProductDepth channels.
inline constexpr int kMaxHalfIeeeProducts = 10;
// Bytes of one component of a chunk, and of a whole chunk.
constexpr int chunk_part_bytes(TensorMath math) { return pointwise_chunk(math) / 8 * kOctetBytes; }
constexpr int chunk_bytes(TensorMath math) {
  return pointwise_parts(math) * chunk_part_bytes(math);
}
// Raw stages to prefetch, if they fit. 0: values are loaded into registers instead, which is faster
// on an H200 where the producers must convert them.
constexpr int wanted_raw_stages(TensorMath math) { return is_float32(math) ? 0 : 4; }

// The epilogue passes through shared memory, 16 filters per warp at a time: either pieces of 128
// bytes, which the lanes store, or whole rows of a tile (512 bytes), which bulk copies store. The
// pitch keeps a warp's writes of 8 or 16 bytes on different banks.
constexpr int staging_pitch(TensorMath math, bool whole_rows) {
  return (whole_rows ? 512 : 128) + (is_float32(math) ? 32 : 16);
}
constexpr bool wants_whole_rows(TensorMath math) {
  return is_half(math) || math == TensorMath::kTf32;
}
// Bulk copies (of source values and of whole rows) free the warps but take longer than loads and
// stores, so they pay off only if the warps have other work. With more filters per block than this,
// the consumer warps have none; only the rows of split TF32 are still better stored by bulk copies.
inline constexpr int kMaxCopyFilters = 128;

// What the kernel receives. The planner fills it in place; flags are 0 or 1.
struct PointwiseParams : TensorParams {
  int plane = 0, pixels = 0;  // target pixels of one image, and of all images
  int tiles = 0;              // tiles of pixels
  int tile_filters = 0;       // filters of a block
  int filter_tiles = 1;       // per group
  int all_filter_tiles = 1;
  int channel_rows = 0;       // rows of kFilterChannels per filter
  int filter_part_bytes = 0;  // one component of a block's filters
  int chunks = 0;             // per tile
  int stages = 0;         // chunks in the ring; all of a tile's if a block has more than 64 filters
  int raw_stages = 0;     // chunks in flight as bulk copies; 0: loads into registers
  int whole_rows = 0;     // 1: the epilogue stores 512-byte rows by bulk copies
  int staging_pitch = 0;  // bytes from one staged row to the next
  int filter_offset = 0, ring_offset = 0, raw_offset = 0;  // in shared memory
  // If 1, 16 bytes of pixels are 16 aligned bytes of one image, provided that the tensor starts at
  // a multiple of 16 bytes. If 0, values are read or written one by one.
  int aligned_source = 0, aligned_target = 0;
  int aligned_filters = 0;  // the same for channels of a filter

  FastDivmod by_plane, by_target_width;
};

// The parameters with what only the host needs. The tensors of TensorParams are not set.
struct PointwiseShape : PointwiseParams {
  TensorMath math = TensorMath::kTf32;
  GatherAxis rows_axis, columns_axis;

  int filters = 0;  // per block, a multiple of kPointwiseFilters; 0: no shape fits
  int grid = 1;     // blocks, a multiple of all filter tiles
  int shared_bytes = 0;
  double microseconds = 0;

  void describe(Text& out) const;
};

// The best shape for a 1x1 problem: forward, or an input gradient with stride 1.
PointwiseShape fit_pointwise_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                   TensorMath math);

// A shape, and the parameters that do not depend on the call's buffers.
struct PointwiseFit {
  PointwiseShape shape;
  PointwiseParams params;
};

struct PointwisePlan {
  static constexpr EngineId kEngines[] = {EngineId::kCudaPointwise};

  HalvedPlan<PointwiseFit> products;
  std::optional<FewFiltersFit> few;  // used instead of `products` where the tensors are aligned

  void describe(Text& out) const;
};

PointwiseFit make_pointwise_fit(const ConvProblem& problem, PointwiseShape shape);

PointwiseParams make_pointwise_params(const ConvProblem& problem, const PointwiseFit& fit,
                                      const Buffers& buffers);

}  // namespace convx
