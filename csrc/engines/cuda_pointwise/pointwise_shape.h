// 1x1 convolution as a product of filters and pixels: the geometry.
//
// Target pixels of all images are one line: image after image, row after row. A tile is 128 of them
// by some filters,
//
//     sums[filter][pixel] = sum over channels of  filters[filter][channel] * source[channel][pixel]
//
// The tensor cores take 16-bit second operands with the pixels side by side, as NCHW has them, so
// nothing is transposed. float32 values are multiplied in parts, whose products are summed. Parts
// of scaled values are float16, where that does (engines/half_scales.cuh):
//   kHalfIeee  two parts, three products, of up to 160 channels
//   kHalfTf32  one part
// else bfloat16:
//   kIeee      three parts, six products, in chains of 64 channels
//   kTf32      two parts, three products: 16 bits of each value, where TF32 has 11
//
// A block keeps its filters in shared memory for all its tiles; source values go through a ring of
// chunks of channels, once for all filters of the block.
#pragma once

#include <cstdint>

#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/gather_axis.h"
#include "engines/tensor_math.h"

namespace convx {

inline constexpr int kPointwisePixels = 128;   // of a tile
inline constexpr int kPointwiseFilters = 64;   // rows of one product
inline constexpr int kPointwiseLoaders = 128;  // threads that load source values
inline constexpr int kPointwiseThreads = 384;  // two warpgroups that multiply, and the loaders
inline constexpr int kPointwiseWarps = 8;      // that multiply
inline constexpr int kProductDepth = 16;       // channels of one product
inline constexpr int kColumnTileBytes = 1024;  // of an operand: 8 channels by 64 pixels
// From 8 channels to the next, in a chunk.
inline constexpr int kOctetBytes = kPointwisePixels / 64 * kColumnTileBytes;
// Filters lie in rows of this many channels, 128 bytes.
inline constexpr int kFilterChannels = 64;
inline constexpr int kPointwiseBarrierBytes = 512;
inline constexpr int kMaxPointwiseStages = 16;  // with two barriers of 8 bytes each
// Source values on their way, as they are in memory: chunks that the copy engine delivers, a share
// to each of the warps that load, with a barrier of 8 bytes each.
inline constexpr int kMaxRawStages = 8;
inline constexpr int kRawShareBytes = 4096;
inline constexpr int kRawStageBytes = kPointwiseLoaders / 32 * kRawShareBytes;

// Whether values are float32 split into bfloat16 parts,
constexpr bool is_split(TensorMath math) {
  return math == TensorMath::kTf32 || math == TensorMath::kIeee;
}
// or are float32 at all.
constexpr bool is_float32(TensorMath math) { return is_split(math) || is_half(math); }
// Parts of 16 bits that a value is multiplied as.
constexpr int pointwise_parts(TensorMath math) {
  return math == TensorMath::kIeee                                    ? 3
         : math == TensorMath::kTf32 || math == TensorMath::kHalfIeee ? 2
                                                                      : 1;
}
constexpr int pointwise_products(TensorMath math) {
  constexpr int kProducts[] = {1, 3, 6};  // those of the smallest parts are not needed
  return kProducts[pointwise_parts(math) - 1];
}
// Channels of a chunk: every loader has eight units of 16 bytes of it.
constexpr int pointwise_chunk(TensorMath math) { return is_float32(math) ? 32 : 64; }
// Chunks that the tensor cores sum in one go, where long chains would drift towards zero.
constexpr int chain_chunks(TensorMath math) { return math == TensorMath::kIeee ? 2 : 1; }
// kHalfIeee has no registers for totals beside its chain and its lower products, and only does
// where the whole reduction is one chain: products of kProductDepth channels.
inline constexpr int kMaxHalfIeeeProducts = 10;
// Of a chunk, each part and all.
constexpr int chunk_part_bytes(TensorMath math) { return pointwise_chunk(math) / 8 * kOctetBytes; }
constexpr int chunk_bytes(TensorMath math) {
  return pointwise_parts(math) * chunk_part_bytes(math);
}
// How many of them are asked for ahead, where there is room; 0: values come through registers,
// which on an H200 is the better way where they must be converted there.
constexpr int wanted_raw_stages(TensorMath math) { return is_float32(math) ? 0 : 4; }

// Sums leave a warp through shared memory, 16 filters at a time: either pieces of 128 bytes, which
// the warp's lanes store, or whole rows of a tile, 512 bytes, which the copy engine stores. Rows
// are so far apart that the warp's writes, 8 or 16 bytes wide, fall on different banks.
constexpr int staging_pitch(TensorMath math, bool whole_rows) {
  return (whole_rows ? 512 : 128) + (is_float32(math) ? 32 : 16);
}
constexpr bool wants_whole_rows(TensorMath math) {
  return is_half(math) || math == TensorMath::kTf32;
}
// Copies, of source values and of whole rows, let warps go on, but take longer than loads and
// stores do: they pay where warps have something else to do. With more filters of a block, all that
// the multiplying warps do is store; only the rows of TF32's split values are better copied still.
inline constexpr int kMaxCopyFilters = 128;

struct PointwiseShape {
  TensorMath math = TensorMath::kTf32;
  GatherAxis rows_axis, columns_axis;

  int filters = 0;       // of a block, a multiple of kPointwiseFilters; 0: there is no shape
  int filter_tiles = 1;  // per group
  int channel_rows = 0;  // rows of kFilterChannels that a filter has
  int chunks = 0;        // of a tile
  int stages = 0;        // chunks that the ring holds; those of a tile, if it has several products
  int raw_stages = 0;    // chunks on their way; 0: they come through registers
  bool whole_rows = false;  // of sums are staged
  int64_t tiles = 0;        // of pixels
  int grid = 1;             // blocks: a multiple of all filter tiles
  // 16 bytes of pixels are 16 aligned bytes of one image, if the tensor starts at such.
  bool aligned_source = false, aligned_target = false;
  // The same for channels of a filter.
  bool aligned_filters = false;

  // Bytes from the start of shared memory.
  int filter_offset = 0, ring_offset = 0, raw_offset = 0, shared_bytes = 0;
  double microseconds = 0;

  int filter_part_bytes() const { return channel_rows * filters * 2 * kFilterChannels; }
};

// The best shape for a 1x1 problem: forward, or the input gradient of stride 1.
PointwiseShape fit_pointwise_shape(const ConvProblem& problem, const DeviceCaps& caps,
                                   TensorMath math);

}  // namespace convx
