// The staging role of the grouped kernel for tensor cores: source pixels, with four channels side
// by side, and weights in the order of a product's operand.
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda_grouped/grouped_mma_params.h"
#include "engines/cuda_grouped/grouped_stage.cuh"

namespace convx {

// A pixel's four channels are a uint2.
using QuadPixel = uint2;

__device__ inline void clear_lines(uint4* lines, int vectors) {
  for (int i = threadIdx.x; i < vectors; i += kGroupedMmaThreads) lines[i] = uint4{0, 0, 0, 0};
}

// Finds the taps of all steps, [step][quad]. Those of a step come from four neighbouring lines
// where they can: line pitches are such that these lie in different banks.
template <int kRows>
__device__ inline void locate_tap_quads(const GroupedMmaParams& p, TapQuad* quads) {
  const int whole = p.window_lines / kStepQuads;
  const int whole_steps = whole * p.column.taps;
  for (int i = threadIdx.x; i < p.steps * kStepQuads; i += kGroupedMmaThreads) {
    const int step = i / kStepQuads;
    int line = step / p.column.taps * kStepQuads + i % kStepQuads;
    int column = step % p.column.taps;
    if (step >= whole_steps) {
      const int left = i - whole_steps * kStepQuads;
      line = whole * kStepQuads + left / p.column.taps;
      column = left % p.column.taps;
    }
    const bool exists = line < p.window_lines;
    if (!exists) {  // what another lane reads
      line = p.window_lines - 1;
      column = p.column.taps - 1;
    }
    TapQuad quad{0, 0, 0, 0, 0};
    const int channels = line % p.quads;
    quad.source_row = p.source_rows[line / p.quads];
    quad.channel = static_cast<int16_t>(channels * kQuadChannels);
    quad.column = static_cast<int16_t>(column);
    quad.offset =
        ((quad.source_row * p.quads + channels) * p.line_pitch + column * p.column.offset_step) *
        static_cast<int>(sizeof(QuadPixel));
    for (int row = 0; row < kRows; ++row) {
      const int distance = quad.source_row - row * p.row.source_step;
      const bool is_tap = exists && distance >= 0 && distance % p.row.offset_step == 0 &&
                          distance / p.row.offset_step < p.row.taps;
      quad.rows |= static_cast<unsigned>(is_tap) << row;
    }
    quads[i] = quad;
  }
}

// The first operand of all products, [group][step][lane][word] (device/mma.cuh): row m is filter
// m % kFilters of the cell's row m / kFilters, and lane t's depths are the channels of the step's
// quad t % 4. Zeros where a row has no such tap, and for filters and channels that do not exist.
template <int kFilters, typename T>
__device__ inline void stage_fragments(const GroupedMmaParams& p, const GroupedBlock& block,
                                       const TapQuad* quads, uint32_t* fragments) {
  constexpr int kWords = 4;
  const int words = block.groups * p.steps * 32 * kWords;
#pragma unroll 2
  for (int i = threadIdx.x; i < words; i += kGroupedMmaThreads) {
    const int word = i % kWords;
    const int lane = i / kWords % 32;
    int group = i / (kWords * 32);
    const TapQuad quad = quads[p.by_steps.split(group) * kStepQuads + lane % 4];
    const int m = lane / 4 + word % 2 * 8;
    const int row = m / kFilters;
    const int filter = m % kFilters;
    const int c = quad.channel + word / 2 * 2;
    const bool is_tap = (quad.rows >> row & 1) != 0 && filter < p.target_channels;
    const int tap = is_tap ? (quad.source_row - row * p.row.source_step) / p.row.offset_step : 0;
    const T* from = static_cast<const T*>(p.weight) + (block.first_group + group) * p.weight_group +
                    (filter * p.weight_target + c * p.weight_source + tap * p.weight_row +
                     quad.column * p.weight_column + p.weight_first);
    const uint32_t low = load_single(from, is_tap && c < p.source_channels);
    const uint32_t high = load_single(from + p.weight_source, is_tap && c + 1 < p.source_channels);
    fragments[i] = high << 16 | low;
  }
}

// The bias of the tile's filters in float32, [group][filter].
template <int kFilters, typename T>
__device__ inline void stage_filter_bias(const GroupedMmaParams& p, const GroupedBlock& block,
                                         float* bias) {
  for (int i = threadIdx.x; i < block.groups * kFilters; i += kGroupedMmaThreads) {
    const int filter = i % kFilters;
    const int64_t k = int64_t{block.first_group + i / kFilters} * p.target_channels + filter;
    const bool there = p.bias != nullptr && filter < p.target_channels;
    bias[i] = there ? to_accumulate(static_cast<const T*>(p.bias)[k]) : 0.0f;
  }
}

// Lines in shared memory: [group][row][quad of channels][pixel].
__device__ inline void locate_lines(const GroupedMmaParams& p, const GroupedBlock& block,
                                    StagedLine* places) {
  const int lines = block.groups * p.staged_rows * p.quads;
  const int rows = (block.rows - 1) * p.row.source_step + (p.row.taps - 1) * p.row.offset_step + 1;
  for (int i = threadIdx.x; i < lines; i += kGroupedMmaThreads) {
    int group = i;
    const int channel = p.by_quads.split(group) * kQuadChannels;
    const int row = p.by_staged_rows.split(group);
    const int y = block.first_row * p.row.source_step + p.row.offset0 + row;
    const bool inside =
        row < rows && static_cast<unsigned>(y) < static_cast<unsigned>(p.source_height);
    places[i] = {group * p.source_group + channel * p.source_c + y * p.source_h,
                 inside ? min(kQuadChannels, p.source_channels - channel) : 0};
  }
}

// Copies units of lines, that is a few pixels' four channels. kWords: of a channel; 0 for a single
// pixel.
template <int kWords, typename T>
__device__ __forceinline__ void stage_quad_units(const GroupedMmaParams& p,
                                                 const GroupedBlock& block, const T* image,
                                                 const StagedLine* places, QuadPixel* lines) {
  constexpr int kBatch = 2;  // units under way
  constexpr int kUnit = kWords > 0 ? 2 * kWords : 1;
  const int count = block.groups * p.staged_rows * p.quads * p.units;
  const int first_column = block.first_column * p.column.source_step + p.column_start;
#pragma unroll 1
  for (int first = threadIdx.x; first < count; first += kBatch * kGroupedMmaThreads) {
    int shared[kBatch];
    int channels[kBatch];  // 0: nothing to copy
    uint32_t words[kBatch][kQuadChannels][kWords > 0 ? kWords : 1];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int index = first + b * kGroupedMmaThreads;
      int line = index < count ? index : 0;
      const int pixel = (p.first_unit + p.by_units.split(line)) * kUnit;
      const int x = first_column + pixel;
      const StagedLine place = places[line];
      const bool inside =
          index < count && static_cast<unsigned>(x) < static_cast<unsigned>(p.source_width);
      shared[b] = line * p.line_pitch + pixel;
      channels[b] = inside ? place.channels : 0;
      const T* source = image + place.source + x;
#pragma unroll
      for (int c = 0; c < kQuadChannels; ++c) {
        if constexpr (kWords == 0) {
          words[b][c][0] = load_single(source, c < channels[b]);
        } else {
          load_words<kWords>(words[b][c], source, c < channels[b]);
        }
        source += p.source_c;
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (channels[b] == 0) continue;
      QuadPixel* to = lines + shared[b];
      const auto& w = words[b];
      if constexpr (kWords == 0) {
        *to = uint2{w[0][0] | w[1][0] << 16, w[2][0] | w[3][0] << 16};
      } else {
#pragma unroll
        for (int i = 0; i < kWords; ++i) {  // two pixels at a time
          const uint4 pixels{
              __byte_perm(w[0][i], w[1][i], 0x5410), __byte_perm(w[2][i], w[3][i], 0x5410),
              __byte_perm(w[0][i], w[1][i], 0x7632), __byte_perm(w[2][i], w[3][i], 0x7632)};
          *reinterpret_cast<uint4*>(to + 2 * i) = pixels;
        }
      }
    }
  }
}

// Copies what lies inside of an image, counted from the block's first; the rest stays zero.
template <typename T>
__device__ __forceinline__ void stage_image(const GroupedMmaParams& p, const GroupedBlock& block,
                                            int image, const StagedLine* places, QuadPixel* lines) {
  const T* source = static_cast<const T*>(p.source) + (block.first_image + image) * p.source_n +
                    block.first_group * p.source_group;
  switch (p.unit) {
    case 8:
      return stage_quad_units<4>(p, block, source, places, lines);
    case 4:
      return stage_quad_units<2>(p, block, source, places, lines);
    case 2:
      return stage_quad_units<1>(p, block, source, places, lines);
    default:
      return stage_quad_units<0>(p, block, source, places, lines);
  }
}

}  // namespace convx
