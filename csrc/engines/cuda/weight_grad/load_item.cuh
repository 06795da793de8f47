// Items: what a warp of the packing kernel takes of X or dY at once, to make packed rows of it
// ([position][channel], 16-bit components).
//
// An item is 512 values of one tile of channels in a stage, 16 per lane, as two units of 8
// channels:
//   columns adjacent in memory (NCHW): 64 positions x one unit. A lane has two neighbouring
//     positions, and loads them as pairs where those are aligned.
//   channels adjacent (channels_last): all units of a few rows. Lanes are neighbouring units, and a
//     lane loads its unit with one or two 16-byte loads.
// A tile of a stage is row_bytes / 16 items either way.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/convert.cuh"
#include "device/shared_memory.cuh"
#include "device/vectors.cuh"
#include "device/wgmma_descriptors.cuh"
#include "engines/cuda/weight_grad/wgrad_call.h"
#include "engines/cuda/weight_grad/wgrad_geometry.h"
#include "kernels/half_scales.cuh"
#include "kernels/tensor_types.cuh"

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

  // The same where columns of a packed row are [kernel column][channel].
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

// The components of two float32 values.
template <OperandForm kForm>
__device__ __forceinline__ void split_pair(float first, float second,
                                           uint32_t (&words)[count_components(kForm)]) {
  if constexpr (kForm == OperandForm::kScaledFp16) {
    words[0] = pack_float16(first, second);
  } else if constexpr (kForm == OperandForm::kScaledFp16x2) {
    const HalfPair pair(first, second);
    words[0] = pair.part[0], words[1] = pair.part[1];
  } else {
    const SplitPair pair(first, second);
#pragma unroll
    for (int j = 0; j < count_components(kForm); ++j) words[j] = pair.part[j];
  }
}

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

// The scale of a scaled form's operand, 1 for others.
template <OperandForm kForm, PackedSide kSide>
__device__ __forceinline__ float find_operand_scale(const WgradCall& call) {
  if constexpr (!is_scaled(kForm)) return 1;
  return kSide == PackedSide::kInput ? call.scales->source : filter_scales(call.scales)[0];
}

}  // namespace convx
