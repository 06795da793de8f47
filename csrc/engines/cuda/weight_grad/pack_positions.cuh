// Packs X and dY into the operands that the MMAs read: 16-bit components, [position][channel].
//
// A block writes kPackedBlockBytes of one tile: 64 to 256 positions, all channels of a packed row,
// which are 8 items, one for each warp. It assembles them in shared memory, swizzled as wgmma wants
// them, and stores them with one bulk copy per component: global memory has the same order.
//
// An item is 512 values of one tile of channels in a stage, 16 per lane, as two units of 8
// channels:
//   columns adjacent in memory (NCHW): 64 positions x one unit. A lane has two neighbouring
//     positions, and loads them as pairs where those are aligned.
//   channels adjacent (channels_last): all units of a few rows. Lanes are neighbouring units, and a
//     lane loads its unit with one or two 16-byte loads.
// A tile of a stage is row_bytes / 16 items either way.
//
// Shared memory: one block of kPackedBlockBytes per component. Memory bandwidth limits the kernel.
#pragma once

#include "device/async_copy.cuh"
#include "device/dependent_launch.cuh"
#include "device/mbarrier.cuh"
#include "device/memory.cuh"
#include "device/vectors.cuh"
#include "device/wgmma_descriptors.cuh"
#include "engines/cuda/weight_grad/wgrad_element.cuh"
#include "engines/cuda/weight_grad/wgrad_work.cuh"
#include "kernels/half_scales.cuh"

namespace convx {

inline constexpr int kUnitChannels = 8;  // 16 bytes of a component

// The tensor of an operand, as all its items read it.
template <typename T, PackedSide kSide>
struct ItemTensor {
  static constexpr bool kIsInput = kSide == PackedSide::kInput;
  const WgradGeometry& g;
  const T* tensor;
  OperandAccess access;
  int64_t channel_stride;
  int channels;  // columns of a packed row that the tensor has

  __device__ __forceinline__ ItemTensor(const WgradGeometry& geometry, const WgradCall& call)
      : g(geometry),
        tensor(static_cast<const T*>(kIsInput ? call.x : call.y)),
        access(kIsInput ? call.input_access : call.gradient_access),
        channel_stride(kIsInput ? geometry.x_strides.c : geometry.y_strides.c),
        channels(kIsInput ? geometry.packed_channels : geometry.filters) {}
};

// Where a position's pixel lies in the tensor, if anywhere.
struct PackedPixel {
  int64_t offset = 0;
  int column = 0;  // of the input, for folded kernel columns; without the padding
  bool is_inside = false;
};

template <PackedSide kSide>
__device__ __forceinline__ PackedPixel find_pixel(const WgradGeometry& g,
                                                  const StrideResidue& residue, int position) {
  int rest = position;
  const int j = g.by_pitch.split(rest);
  const int i = g.by_rows.split(rest);
  PackedPixel pixel;
  if (rest >= g.images) return pixel;
  if constexpr (kSide == PackedSide::kGradient) {
    pixel.is_inside = i < g.out_height && j < g.out_width;
    pixel.offset = rest * g.y_strides.n + i * g.y_strides.h + j * g.y_strides.w;
  } else {
    const int row = i * g.stride_h + residue.row - g.pad_top;
    pixel.column = j * g.stride_w + residue.column - g.packed_left;
    pixel.is_inside = row >= 0 && row < g.height &&
                      (g.folds_columns || (pixel.column >= 0 && pixel.column < g.width));
    pixel.offset = rest * g.x_strides.n + row * g.x_strides.h + pixel.column * g.x_strides.w;
  }
  return pixel;
}

// Which rows of the stage and which unit of a packed row a lane has.
template <bool kChannelsAdjacent>
struct LanePlace {
  int row[2], unit;

  // item: of the tile, below units.
  __device__ __forceinline__ LanePlace(int item, int units) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (kChannelsAdjacent) {
      const int rows = 32 / units;  // that the warp's lanes cover once
      unit = lane & (units - 1);
      row[0] = item * 2 * rows + lane / units;
      row[1] = row[0] + rows;
    } else {
      unit = item;
      row[0] = 2 * lane, row[1] = 2 * lane + 1;
    }
  }
};

// The values of a lane, as they were loaded: 16-bit values in pairs of positions where columns are
// adjacent ([channel] of {position, position}), in pairs of channels otherwise
// ([position][channel pair]); float32 values one by one, in the same order.
template <typename T>
struct ItemValues {
  static constexpr int kWords = 16 * sizeof(T) / 4;
  uint32_t words[kWords];

  template <bool kChannelsAdjacent>
  __device__ __forceinline__ void set(int position, int channel, uint32_t bits) {
    const int place = kChannelsAdjacent ? position * 8 + channel : channel * 2 + position;
    if constexpr (sizeof(T) == 4) {
      words[place] = bits;
    } else {
      words[place / 2] = place % 2 == 0 ? bits : words[place / 2] | bits << 16;
    }
  }

  // The pixels of the lane's rows, from the item's first position on.
  template <PackedSide kSide, bool kChannelsAdjacent>
  __device__ __forceinline__ void load(const ItemTensor<T, kSide>& from,
                                       const StrideResidue& residue, int first, int first_channel,
                                       const LanePlace<kChannelsAdjacent>& place) {
    const WgradGeometry& g = from.g;
    const int channel = first_channel + place.unit * kUnitChannels;
    const int valid = from.channels - channel;  // channels of the unit, 8 or more if all
    const PackedPixel pixel = find_pixel<kSide>(g, residue, first + place.row[0]);
    const T* const at = from.tensor + pixel.offset + channel * from.channel_stride;
    if (!kChannelsAdjacent && from.access.is_vector) {
      constexpr int kPairWords = 2 * sizeof(T) / 4;
#pragma unroll
      for (int i = 0; i < kUnitChannels; ++i) {
        load_words<kPairWords>(words + i * kPairWords, at + i * from.channel_stride,
                               pixel.is_inside && i < valid);
      }
      return;
    }
    const PackedPixel other = find_pixel<kSide>(g, residue, first + place.row[1]);
    const T* const other_at = at + (other.offset - pixel.offset);
    if (kChannelsAdjacent && from.access.is_vector) {
      constexpr int kUnitWords = kUnitChannels * sizeof(T) / 4;
#pragma unroll
      for (int i = 0; i < kUnitWords; i += 4) {
        load_words<4>(words + i, at + i * 4 / sizeof(T), pixel.is_inside && valid > 0);
        load_words<4>(words + kUnitWords + i, other_at + i * 4 / sizeof(T),
                      other.is_inside && valid > 0);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kUnitChannels; ++i) {
      const int64_t offset = i * from.channel_stride;
      set<kChannelsAdjacent>(0, i, load_single(at + offset, pixel.is_inside && i < valid));
      set<kChannelsAdjacent>(1, i, load_single(other_at + offset, other.is_inside && i < valid));
    }
  }

  // Loads an item of a packed row whose columns are [kernel column][channel].
  template <PackedSide kSide, bool kChannelsAdjacent>
  __device__ __forceinline__ void load_folded(const ItemTensor<T, kSide>& from,
                                              const StrideResidue& residue, int position,
                                              int first_channel,
                                              const LanePlace<kChannelsAdjacent>& place) {
    const WgradGeometry& g = from.g;
    const int first = first_channel + place.unit * kUnitChannels;
    const PackedPixel pixels[2] = {find_pixel<kSide>(g, residue, position + place.row[0]),
                                   find_pixel<kSide>(g, residue, position + place.row[1])};
#pragma unroll
    for (int i = 0; i < kUnitChannels; ++i) {
      int s = first + i;
      const int c = g.by_group_channels.split(s);  // there are no groups
      const int shift = s * g.dilation_w;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = pixels[j].column + shift;
        const bool is_valid =
            pixels[j].is_inside && first + i < from.channels && column >= 0 && column < g.width;
        const T* const at =
            from.tensor + pixels[j].offset + c * from.channel_stride + shift * g.x_strides.w;
        set<kChannelsAdjacent>(j, i, load_single(at, is_valid));
      }
    }
  }
};

// Two units of packed values in each component of a form, one of each of a lane's positions.
template <OperandForm kForm>
struct PackedItem {
  static constexpr int kComponents = count_components(kForm);
  uint32_t words[2][kComponents][kUnitChannels / 2];

  // scale, scales: of scaled forms. Sets scales->unfit if a value does not fit.
  template <bool kChannelsAdjacent, typename T>
  __device__ __forceinline__ void pack(const ItemValues<T>& values, float scale, HalfScales* scales,
                                       int units) {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < kUnitChannels / 2; ++i) {
        if constexpr (kChannelsAdjacent) {
          words[0][0][i] = values.words[i], words[1][0][i] = values.words[4 + i];
        } else {
          words[0][0][i] = __byte_perm(values.words[2 * i], values.words[2 * i + 1], 0x5410);
          words[1][0][i] = __byte_perm(values.words[2 * i], values.words[2 * i + 1], 0x7632);
        }
      }
    } else {
#pragma unroll
      for (int position = 0; position < 2; ++position) {
        float unit[kUnitChannels];
#pragma unroll
        for (int i = 0; i < kUnitChannels; ++i) {
          unit[i] = __uint_as_float(
              values.words[kChannelsAdjacent ? position * kUnitChannels + i : 2 * i + position]);
          if constexpr (is_scaled(kForm)) unit[i] *= scale;
        }
        if constexpr (is_scaled(kForm)) {
          // Lanes that hold the same channels judge together whether those are too small.
          uint32_t peers = 0xffffffff;
          if constexpr (kChannelsAdjacent) {
            const uint32_t every = units == 8   ? 0x01010101u
                                   : units == 4 ? 0x11111111u
                                                : 0x55555555u;
            peers = every << (threadIdx.x & (units - 1));
          }
          check_fitness(scales, unit, peers);
        }
        split(unit, words[position]);
      }
    }
  }

  // Stores the units at their rows of a tile, which begins at a multiple of 1024 bytes. Where lanes
  // have neighbouring rows, half of them store their second row first: 8 lanes that store at once
  // then have 8 different banks of 16 bytes.
  template <bool kChannelsAdjacent>
  __device__ __forceinline__ void store(uint32_t tile, uint32_t component_bytes,
                                        const LanePlace<kChannelsAdjacent>& place,
                                        int row_bytes) const {
    const bool swaps = !kChannelsAdjacent && (threadIdx.x & 4) != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = swaps ? place.row[1 - i] : place.row[i];
      const uint32_t offset = static_cast<uint32_t>(row * row_bytes + place.unit * 16);
      const uint32_t to = tile + swizzle(offset, row_bytes);
#pragma unroll
      for (int component = 0; component < kComponents; ++component) {
        uint32_t unit[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          unit[j] = swaps ? words[1 - i][component][j] : words[i][component][j];
        }
        store_16_bytes(to + component * component_bytes, unit);
      }
    }
  }

 private:
  static __device__ __forceinline__ void split(const float (&values)[kUnitChannels],
                                               uint32_t (&to)[kComponents][kUnitChannels / 2]) {
#pragma unroll
    for (int i = 0; i < kUnitChannels / 2; ++i) {
      uint32_t pair[kComponents];
      split_pair<kForm>(values[2 * i], values[2 * i + 1], pair);
#pragma unroll
      for (int j = 0; j < kComponents; ++j) to[j][i] = pair[j];
    }
  }
};

inline constexpr int kPackThreads = 256;
static_assert(kPackedBlockBytes == kPackThreads * 2 * 16, "two units per thread");

// Loads one item, packs it, and stores it at its place of the block in shared memory. wait(): for
// that memory to be free.
template <typename T, OperandForm kForm, PackedSide kSide, bool kChannelsAdjacent, typename Wait>
__device__ __forceinline__ void pack_own_item(const ItemTensor<T, kSide>& from,
                                              const WgradCall& call, const StrideResidue& residue,
                                              int first, int first_channel, float scale,
                                              int row_bytes, uint32_t shared, const Wait& wait) {
  const int units = row_bytes / 16, warp = static_cast<int>(threadIdx.x) / 32;
  const int stage = warp / units;  // of the block
  const LanePlace<kChannelsAdjacent> place(warp - stage * units, units);
  ItemValues<T> values;
  const int position = first + stage * kStagePositions;
  if (kSide == PackedSide::kInput && from.g.folds_columns) {
    values.load_folded(from, residue, position, first_channel, place);
  } else {
    values.load(from, residue, position, first_channel, place);
  }
  wait();
  PackedItem<kForm> item;
  item.template pack<kChannelsAdjacent>(values, scale, call.scales, units);
  item.store(shared + stage * kStagePositions * row_bytes, kPackedBlockBytes, place, row_bytes);
}

// Packs the blocks of one operand. blocks: [begin, end) of all blocks that the grid packs.
template <typename T, OperandForm kForm, PackedSide kSide>
__device__ __forceinline__ void pack_side(const WgradGeometry& g, const WgradCall& call,
                                          int64_t begin, int64_t end) {
  constexpr bool kIsInput = kSide == PackedSide::kInput;
  constexpr int kComponents = count_components(kForm);
  extern __shared__ char unaligned[];
  const uint32_t shared = align_start(unaligned);

  char* const packed = kIsInput ? call.packed_x : call.packed_y;
  const int row_bytes = kIsInput ? g.row_bytes : kGradientRowBytes;
  const int block_rows = kPackedBlockBytes / row_bytes;
  const int64_t tile_rows = kIsInput ? g.input_rows : g.gradient_rows;
  const int tiles = kIsInput ? g.channel_tiles : g.filter_tiles;
  const int residue_tiles = (kIsInput ? g.residue_count : 1) * tiles;
  const int64_t tile_bytes = tile_rows * row_bytes, component_bytes = residue_tiles * tile_bytes;
  const ItemTensor<T, kSide> from(g, call);
  const float scale = find_operand_scale<kForm, kSide>(call);

  // This block's first, in the order of the grid.
  int64_t block = begin + (blockIdx.x + gridDim.x - begin % gridDim.x) % gridDim.x;
  for (; block < end; block += gridDim.x) {
    // Neighbouring blocks are tiles of the same positions, which lie near each other in memory.
    const int64_t of_positions = (block - begin) / residue_tiles;
    const int residue_tile = static_cast<int>(block - begin - of_positions * residue_tiles);
    const int residue = kIsInput ? residue_tile / tiles : 0, tile = residue_tile - residue * tiles;
    const auto first =
        static_cast<int>(call.first_stage * kStagePositions + of_positions * block_rows);
    const auto wait = [] {
      if (threadIdx.x == 0) wait_bulk_reads();  // of the block before
      __syncthreads();
    };
    const int channel = tile * (row_bytes / 2);
    if (from.access.channels_adjacent) {
      pack_own_item<T, kForm, kSide, true>(from, call, g.residues[residue], first, channel, scale,
                                           row_bytes, shared, wait);
    } else {
      pack_own_item<T, kForm, kSide, false>(from, call, g.residues[residue], first, channel, scale,
                                            row_bytes, shared, wait);
    }
    fence_async_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
      char* const to = packed + residue_tile * tile_bytes + of_positions * kPackedBlockBytes;
      for (int component = 0; component < kComponents; ++component) {
        bulk_store(to + component * component_bytes, shared + component * kPackedBlockBytes,
                   kPackedBlockBytes);
      }
      commit_bulk_stores();
    }
  }
}

template <typename T, OperandForm kForm>
__global__ void __launch_bounds__(kPackThreads)
    pack_positions_kernel(const __grid_constant__ WgradGeometry g,
                          const __grid_constant__ WgradCall call) {
  wait_for_kernels_before();
  let_next_kernel_start();
  if (__syncthreads_or(must_return(call))) return;  // other blocks may be about to set the flag
  const int64_t input_blocks = g.input_bytes(1) / kPackedBlockBytes;
  const int64_t blocks = input_blocks + g.gradient_bytes(1) / kPackedBlockBytes;
  pack_side<T, kForm, PackedSide::kInput>(g, call, 0, input_blocks);
  pack_side<T, kForm, PackedSide::kGradient>(g, call, input_blocks, blocks);
  if (threadIdx.x == 0) wait_bulk_stores();
}

}  // namespace convx
