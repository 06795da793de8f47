// Staging of the grouped tensor-core kernel: source pixels with four interleaved channels, and
// weights in the order of the MMA's A operand.
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda/grouped/grouped_stage.cuh"

namespace convx {

// The four channels of a pixel.
using QuadPixel = uint2;

__device__ inline void clear_lines(uint4* lines, int vectors) {
  for (int i = threadIdx.x; i < vectors; i += kGroupedMmaThreads) lines[i] = uint4{0, 0, 0, 0};
}

// Writes the tap table, [step][quad]. A step's quads come from four neighbouring lines if possible,
// because line pitches put these into different banks.
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
    if (!exists) {  // read the last existing pixel, which another lane reads anyway
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

// Writes the A operands of all MMAs, [group][step][lane][word] (device/mma.cuh). Row m is filter
// m % kFilters of the cell's output row m / kFilters. The depths of lane t are the channels of quad
// t % 4 of the step. Taps that a row does not have, and missing filters and channels, are zeros.
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

// Finds the source of every line. Lines in shared memory: [group][row][quad of channels][pixel].
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

// Copies units of a line: a few pixels with their four channels. kWords is the number of words per
// channel; 0 stands for a single pixel.
template <int kWords, typename T>
__device__ __forceinline__ void stage_quad_units(const GroupedMmaParams& p,
                                                 const GroupedBlock& block, const T* image,
                                                 const StagedLine* places, QuadPixel* lines) {
  constexpr int kBatch = 2;  // units in flight per thread
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

// Copies the part of an image that lies inside it; the rest of the lines stays zero. `image` counts
// from the block's first.
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
