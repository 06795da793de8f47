// Grouped convolution on FFMA units: channels_last, forward and stride-1 input gradient.
//
//     y[pixel][k] = bias[k] + sum over taps, c of  x[pixel under the tap][c] * w[k][c][tap]
//     with c running over the channels of the group
//
//      columns  --->
//      +--+--+--+--+--+--+--+--+        A thread computes four target channels (a quad) of 8
//      |  strip of 8 outputs   |        neighbouring outputs. The neighbouring threads compute the
//      +--+--+--+--+--+--+--+--+        other quads of the same pixels, so that a warp reads and
//                                       writes whole sectors.
//
// Shared memory: weights [tap row][tap column][source channel][quad of the block], four float32
// each, at most 48 KiB. A weight is read once for 8 outputs.
//
// Each source byte comes from memory once; other taps and other quads of the group find it in L1.
// Limit: instruction issue. In 16 bits a warp issues about 220 instructions for 128 multiply-adds
// (SASS count, 2026-11-16; docs/engines/cuda_grouped.md).
// Grid: neighbouring blocks hold the weights of different quads and process the same strips.
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda/grouped/grouped_geometry.h"
#include "kernels/epilogue.cuh"

namespace convx {

// Stages the weights of the block's quads in the order in which the kernel visits them.
template <typename T>
__device__ inline void stage_pixel_weights(const GroupedPixelParams& p, int first_quad,
                                           float4* staged) {
  const T* const weights = static_cast<const T*>(p.weight);
  const int count = p.row.taps * p.column.taps * p.source_channels * p.block_quads;
  for (int i = threadIdx.x; i < count; i += kPixelThreads) {
    int rest = i;
    const int quad = first_quad + p.by_block_quads.split(rest);
    const int c = rest % p.source_channels;
    const int tap = rest / p.source_channels;
    const int r = p.row.tap0 + tap / p.column.taps * p.row.tap_step;
    const int s = p.column.tap0 + tap % p.column.taps * p.column.tap_step;
    float values[kPixelQuad] = {};
    if (quad < p.quads) {
      const int target = quad * kPixelQuad;
      const T* from = weights + target / p.target_channels * p.weight_group +
                      target % p.target_channels * p.weight_target + c * p.weight_source +
                      r * p.weight_r + s * p.weight_s;
#pragma unroll
      for (int v = 0; v < kPixelQuad; ++v) values[v] = to_accumulate(from[v * p.weight_target]);
    }
    staged[i] = float4{values[0], values[1], values[2], values[3]};
  }
}

template <typename T>
__device__ __forceinline__ void load_quad(float (&to)[kPixelQuad], const T* from, bool valid,
                                          bool aligned) {
  constexpr int kWords = kPixelQuad * sizeof(T) / 4;
  uint32_t words[kWords];
  if (aligned) {
    load_words<kWords>(words, from, valid);
  } else {
    load_words_of_elements<kWords>(words, from, valid);
  }
#pragma unroll
  for (int w = 0; w < kWords; ++w) widen(to, w * (4 / sizeof(T)), words[w], T{});
}

template <typename T>
__global__ void __launch_bounds__(kPixelThreads)
    grouped_pixel_kernel(const __grid_constant__ GroupedPixelParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  float4* const weights = reinterpret_cast<float4*>(shared_bytes);
  const int first_quad = blockIdx.x % p.quad_blocks * p.block_quads;
  stage_pixel_weights<T>(p, first_quad, weights);
  __syncthreads();
  int slot = threadIdx.x;
  const int block_quad = p.by_block_quads.split(slot);
  const int target_channel = (first_quad + block_quad) * kPixelQuad;
  if (slot >= p.slots || first_quad + block_quad >= p.quads) return;
  const int source_channel = target_channel / p.target_channels * p.source_channels;
  float bias[kPixelQuad] = {};
  if (p.bias != nullptr) {
#pragma unroll
    for (int v = 0; v < kPixelQuad; ++v) {
      bias[v] = to_accumulate(static_cast<const T*>(p.bias)[target_channel + v]);
    }
  }
  const int block = blockIdx.x / p.quad_blocks, step = gridDim.x / p.quad_blocks * p.slots;
  for (int item = block * p.slots + slot; item < p.strips; item += step) {
    int image = item;
    const int column = p.by_row_strips.split(image) * kPixelStrip;
    const int row = p.by_rows.split(image);
    float sums[kPixelStrip][kPixelQuad];
#pragma unroll
    for (int i = 0; i < kPixelStrip; ++i) {
#pragma unroll
      for (int v = 0; v < kPixelQuad; ++v) sums[i][v] = bias[v];
    }
    const T* const plane = static_cast<const T*>(p.source) + image * p.source_n + source_channel;
    const float4* tap_weights = weights + block_quad;
    for (int r = 0; r < p.row.taps; ++r) {
      const int y = row * p.row.source_step + p.row.offset0 + r * p.row.offset_step;
      const bool in_rows = static_cast<unsigned>(y) < static_cast<unsigned>(p.source_height);
      const int tap_values = p.source_channels * p.block_quads;
      if (!in_rows) {
        tap_weights += p.column.taps * tap_values;
        continue;
      }
      const T* const line = plane + y * p.source_h;
      for (int s = 0; s < p.column.taps; ++s, tap_weights += tap_values) {
        const int x = column * p.column.source_step + p.column.offset0 + s * p.column.offset_step;
        for (int c = 0; c < p.source_channels; c += kPixelQuad) {
          float4 weight[kPixelQuad];
#pragma unroll
          for (int j = 0; j < kPixelQuad; ++j) weight[j] = tap_weights[(c + j) * p.block_quads];
#pragma unroll
          for (int i = 0; i < kPixelStrip; ++i) {
            const int at = x + i * p.column.source_step;
            const bool valid = static_cast<unsigned>(at) < static_cast<unsigned>(p.source_width);
            float values[kPixelQuad];
            load_quad(values, line + at * p.source_w + c, valid, p.aligned);
#pragma unroll
            for (int j = 0; j < kPixelQuad; ++j) {
              sums[i][0] = fmaf(weight[j].x, values[j], sums[i][0]);
              sums[i][1] = fmaf(weight[j].y, values[j], sums[i][1]);
              sums[i][2] = fmaf(weight[j].z, values[j], sums[i][2]);
              sums[i][3] = fmaf(weight[j].w, values[j], sums[i][3]);
            }
          }
        }
      }
    }
    T* const target = static_cast<T*>(p.target) + image * p.target_n + row * p.target_h +
                      column * p.target_w + target_channel;
#pragma unroll
    for (int i = 0; i < kPixelStrip; ++i) {
      if (column + i >= p.column.count) break;
      T* const to = target + i * p.target_w;
      all_at_least(sums[i], p.lowest);
      if (p.aligned) {
        store_vector(to, sums[i]);
      } else {
#pragma unroll
        for (int v = 0; v < kPixelQuad; ++v) to[v] = round_to<T>(sums[i][v]);
      }
    }
  }
}

}  // namespace convx
