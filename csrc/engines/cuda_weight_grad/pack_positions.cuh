// Packs X and dY into the operands that the MMAs read: 16-bit components, [position][channel].
//
// A block writes kPackedBlockBytes of one tile: 64 to 256 positions, all channels of a packed row.
// It assembles them in shared memory, swizzled as wgmma wants them, and stores them with one bulk
// copy per component: global memory has the same order. A thread makes two units of 8 channels.
// Where columns are neighbours in memory (NCHW), its units are two neighbouring positions, loaded
// as pairs where those are aligned, and the lanes of a warp are 64 positions; where channels are
// (channels_last), lanes are neighbouring units, and a unit is one or two 16-byte loads.
//
// Shared memory: one block of kPackedBlockBytes per component. Memory bandwidth limits the kernel.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/async_copy.cuh"
#include "device/convert.cuh"
#include "device/dependent_launch.cuh"
#include "device/mbarrier.cuh"
#include "device/swizzle.cuh"
#include "device/tensor_formats.cuh"
#include "engines/cuda_weight_grad/wgrad_call.h"
#include "engines/cuda_weight_grad/wgrad_geometry.h"
#include "engines/gate.cuh"
#include "engines/half_scales.cuh"

namespace convx {

inline constexpr int kPackThreads = 256;
inline constexpr int kUnitChannels = 8;  // 16 bytes of a component

// The operand that a launch packs.
enum class PackedSide : uint8_t { kInput, kGradient };

// A unit in each component of a form, and how float32 values become one.
template <OperandForm kForm>
struct PackedUnit {
  static constexpr int kComponents = count_components(kForm);
  uint32_t words[kComponents][kUnitChannels / 2];

  __device__ __forceinline__ explicit PackedUnit(const float (&values)[kUnitChannels]) {
#pragma unroll
    for (int i = 0; i < kUnitChannels / 2; ++i) {
      const float first = values[2 * i], second = values[2 * i + 1];
      if constexpr (kForm == OperandForm::kBFloat16) {
        words[0][i] = pack_bfloat16(first, second);
      } else if constexpr (kForm == OperandForm::kFloat16 || kForm == OperandForm::kScaledFp16) {
        words[0][i] = pack_float16(first, second);
      } else if constexpr (kForm == OperandForm::kScaledFp16x2) {
        const HalfPair pair(first, second);
        words[0][i] = pair.part[0], words[1][i] = pair.part[1];
      } else {
        const SplitPair pair(first, second);
#pragma unroll
        for (int j = 0; j < kComponents; ++j) words[j][i] = pair.part[j];
      }
    }
  }
};

// Where a position's pixel lies in the tensor, if anywhere.
struct PackedPixel {
  int64_t offset = 0;
  int column = 0;  // of the input, for folded kernel columns; without the padding
  bool is_inside = false;
};

template <PackedSide kSide>
__device__ __forceinline__ PackedPixel find_pixel(const WgradGeometry& g,
                                                  const StrideResidue& residue, int64_t position) {
  int rest = static_cast<int>(position);
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

// A unit's values, zero where the tensor has none. is_vector: 8 channels are one aligned load.
template <typename T, PackedSide kSide>
__device__ __forceinline__ void load_unit(const WgradGeometry& g, const T* tensor,
                                          const PackedPixel& pixel, int channel, bool is_vector,
                                          float (&values)[kUnitChannels]) {
  constexpr bool kIsInput = kSide == PackedSide::kInput;
  const int64_t stride = kIsInput ? g.x_strides.c : g.y_strides.c;
  const int count = kIsInput ? g.packed_channels : g.filters;
  if (kIsInput && g.folds_columns) {
#pragma unroll
    for (int i = 0; i < kUnitChannels; ++i) {
      const int s = (channel + i) / g.channels, c = channel + i - s * g.channels;
      const int column = pixel.column + s * g.dilation_w;
      const bool valid = pixel.is_inside && channel + i < count && column >= 0 && column < g.width;
      const int64_t offset = pixel.offset + c * stride + s * g.dilation_w * g.x_strides.w;
      values[i] = valid ? to_accumulate(tensor[offset]) : 0.0f;
    }
    return;
  }
  if (is_vector && pixel.is_inside && channel + kUnitChannels <= count) {
    struct alignas(16) Vector {
      T value[16 / sizeof(T)];
    };
#pragma unroll
    for (int i = 0; i < kUnitChannels; i += 16 / sizeof(T)) {
      const auto vector = *reinterpret_cast<const Vector*>(tensor + pixel.offset + channel + i);
#pragma unroll
      for (int j = 0; j < static_cast<int>(16 / sizeof(T)); ++j) {
        values[i + j] = to_accumulate(vector.value[j]);
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kUnitChannels; ++i) {
    const bool valid = pixel.is_inside && channel + i < count;
    values[i] = valid ? to_accumulate(tensor[pixel.offset + (channel + i) * stride]) : 0.0f;
  }
}

// The units of two neighbouring positions, whose pixels are an aligned pair in memory.
template <typename T, PackedSide kSide>
__device__ __forceinline__ void load_pair(const WgradGeometry& g, const T* tensor,
                                          const PackedPixel& pixel, int channel,
                                          float (&values)[2][kUnitChannels]) {
  struct alignas(2 * sizeof(T)) Pair {
    T first, second;
  };
  constexpr bool kIsInput = kSide == PackedSide::kInput;
  const int64_t stride = kIsInput ? g.x_strides.c : g.y_strides.c;
  const int count = kIsInput ? g.channels : g.filters;
#pragma unroll
  for (int i = 0; i < kUnitChannels; ++i) {
    values[0][i] = values[1][i] = 0;
    if (channel + i >= count) continue;
    const Pair pair =
        *reinterpret_cast<const Pair*>(tensor + pixel.offset + (channel + i) * stride);
    values[0][i] = to_accumulate(pair.first), values[1][i] = to_accumulate(pair.second);
  }
}

// channels_adjacent: units of a position are neighbours in memory. is_vector: see load_unit,
// or all pairs of columns that begin at an even offset are aligned.
template <typename T, OperandForm kForm, PackedSide kSide>
__global__ void __launch_bounds__(kPackThreads)
    pack_positions_kernel(const __grid_constant__ WgradGeometry g,
                          const __grid_constant__ WgradCall call, bool channels_adjacent,
                          bool is_vector) {
  wait_for_kernels_before();
  let_next_kernel_start();
  if (is_shut(call)) return;
  constexpr bool kIsInput = kSide == PackedSide::kInput;
  constexpr int kComponents = count_components(kForm);
  extern __shared__ char unaligned[];
  const uint32_t shared = (shared_address(unaligned) + 1023) / 1024 * 1024;

  const T* const tensor = static_cast<const T*>(kIsInput ? call.x : call.y);
  char* const packed = kIsInput ? call.packed_x : call.packed_y;
  const int row_bytes = kIsInput ? g.row_bytes : kGradientRowBytes;
  const int units = row_bytes / 16, block_rows = kPackedBlockBytes / row_bytes;
  const int64_t tile_rows = kIsInput ? g.input_rows : g.gradient_rows;
  const int tiles = kIsInput ? g.channel_tiles : g.filter_tiles;
  const int64_t tile_bytes = tile_rows * row_bytes;
  const int64_t component_bytes = (kIsInput ? g.residue_count : 1) * tiles * tile_bytes;
  const int64_t tile_blocks = tile_rows / block_rows;
  const int64_t blocks = component_bytes / kPackedBlockBytes;
  float scale = 1;
  if constexpr (is_scaled(kForm)) {
    scale = kIsInput ? call.scales->source : filter_scales(call.scales)[0];
  }

  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    // Neighbouring blocks are tiles of the same positions, which lie near each other in memory.
    const int64_t of_positions = block / (blocks / tile_blocks);
    const int residue_tile = static_cast<int>(block - of_positions * (blocks / tile_blocks));
    const int residue = kIsInput ? residue_tile / tiles : 0, tile = residue_tile - residue * tiles;
    const int64_t first = call.first_stage * kStagePositions + of_positions * block_rows;

    float values[2][kUnitChannels];
    int places[2], channels[2];
    PackedPixel pixels[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int thread = static_cast<int>(threadIdx.x);
      const int slot = thread + i * kPackThreads;
      const int row = channels_adjacent ? slot / units : thread % (block_rows / 2) * 2 + i;
      const int unit = channels_adjacent ? slot % units : thread / (block_rows / 2);
      places[i] = row * row_bytes + unit * 16;
      channels[i] = tile * (row_bytes / 2) + unit * kUnitChannels;
      pixels[i] = find_pixel<kSide>(g, g.residues[residue], first + row);
    }
    const bool is_pair = !channels_adjacent && is_vector && !(kIsInput && g.folds_columns) &&
                         pixels[0].is_inside && pixels[1].is_inside &&
                         pixels[1].offset == pixels[0].offset + 1 && pixels[0].offset % 2 == 0;
    if (is_pair) {
      load_pair<T, kSide>(g, tensor, pixels[0], channels[0], values);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_unit<T, kSide>(g, tensor, pixels[i], channels[i], channels_adjacent && is_vector,
                            values[i]);
      }
    }
    if (threadIdx.x == 0) wait_bulk_reads();  // of the block before
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (is_scaled(kForm)) {
#pragma unroll
        for (float& value : values[i]) value *= scale;
        // Lanes that hold the same channels judge together whether those are too small.
        uint32_t peers = 0xffffffff;
        if (channels_adjacent) {
          const uint32_t every = units == 8 ? 0x01010101u : units == 4 ? 0x11111111u : 0x55555555u;
          peers = every << (threadIdx.x % units);
        }
        check_fitness(call.scales, values[i], peers);
      }
      const PackedUnit<kForm> unit(values[i]);
#pragma unroll
      for (int component = 0; component < kComponents; ++component) {
        const uint32_t place = swizzle(static_cast<uint32_t>(places[i]), row_bytes);
        store_16_bytes(shared + component * kPackedBlockBytes + place, unit.words[component]);
      }
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
  if (threadIdx.x == 0) wait_bulk_stores();
}

}  // namespace convx
