// Depthwise input gradient with stride 2, for 3x3 and 5x5 kernels, in NCHW and channels_last.
//
// With h = 2*i + a - pad for a lattice point i and a in {0, 1}, and the same for columns,
//
//     x[h][w][c] = sum over m, l of  y[i - m][j - l][c] * w[c][a + 2*m][b + 2*l]
//
// so a lattice point has four target pixels, and they share ceil(R/2) x ceil(R/2) pixels of y:
//
//      y                            x
//      +-----+-----+                +-----+-----+     A thread goes down the rows i of one lattice
//      |i-1  |     |  window in     | a=0 |     |     column j. It keeps the weights and the rows
//      of
//      +-----+-----+  registers     +-----+-----+     y that the next rows see, reads each row of y
//      |i j-1| i j |  ->            | a=1 |     |     once, and stores four pixels per step.
//      +-----+-----+                +-----+-----+
//
// In channels_last a thread has 4 channels (2 for 5x5 kernels) and its neighbours have the other
// channels, so that warps read and write whole sectors; in NCHW it has one, and its neighbours have
// the other columns. Pixels of y beside its own come from L1. The only zeros that it multiplies are
// padding. It uses no shared memory.
// Grid: channels (channels_last) or columns (NCHW) fastest, then the other, row segments, images.
#pragma once

#include <algorithm>

#include "engines/cuda/depthwise/depthwise_geometry.h"
#include "engines/cuda/depthwise/element_vector.cuh"

namespace convx {

template <typename T, int kKernel, int kChannels>
__global__ void __launch_bounds__(kDepthwiseThreads, kPhaseStripBlocks)
    phase_strip_kernel(const __grid_constant__ PhaseStripParams p) {
  constexpr int kTaps = count_phase_taps(kKernel);
  constexpr int kAhead = kPhaseStripAhead;
  int index = blockIdx.x * kDepthwiseThreads + threadIdx.x;
  if (index >= p.threads) return;
  int channel = 0;
  if (p.channel_is_fastest) channel = p.by_vectors.split(index) * kChannels;
  const int column = p.by_columns.split(index) + p.first_column;
  if (!p.channel_is_fastest) channel = p.by_vectors.split(index) * kChannels;
  const int first_row = p.by_segments.split(index) * p.segment_rows + p.first_row;
  const int end_row = min(first_row + p.segment_rows, p.end_row);
  const int image = index;

  const T* const source = static_cast<const T*>(p.source) + image * p.source_n +
                          channel * p.source_c + column * p.source_w;
  bool inside[kTaps];  // whether y has the columns
#pragma unroll
  for (int l = 0; l < kTaps; ++l) {
    inside[l] = static_cast<unsigned>(column - l) < static_cast<unsigned>(p.source_width);
  }
  using Row = ElementVector<T, kChannels>[kTaps];
  const auto load_row = [&](Row& row, int i) {
    const bool has_row = static_cast<unsigned>(i) < static_cast<unsigned>(p.source_height);
#pragma unroll
    for (int l = 0; l < kTaps; ++l) {
      row[l].load(source + i * p.source_h - l * p.source_w, has_row && inside[l]);
    }
  };
  float window[kTaps][kTaps][kChannels];  // [m][l]: row i - m, column j - l
  const auto widen_row = [&](float (&to)[kTaps][kChannels], const Row& row) {
#pragma unroll
    for (int l = 0; l < kTaps; ++l) row[l].widen_to(to[l]);
  };
#pragma unroll
  for (int m = 1; m < kTaps; ++m) {
    Row row;
    load_row(row, first_row - m);
    widen_row(window[m - 1], row);
  }
  Row ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_row(ahead[i], first_row + i);

  float weight[kKernel][kKernel][kChannels];
#pragma unroll
  for (int r = 0; r < kKernel; ++r) {
#pragma unroll
    for (int s = 0; s < kKernel; ++s) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const int64_t offset = (channel + c) * p.weight_k + r * p.weight_r + s * p.weight_s;
        weight[r][s][c] = to_accumulate(__ldg(static_cast<const T*>(p.weight) + offset));
      }
    }
  }

  T* const target = static_cast<T*>(p.target) + image * p.target_n + channel * p.target_c;
  const auto store_pixel = [&](int i, int a, int b) {
    const int h = kPhaseStride * i + a - p.pad_top, w = kPhaseStride * column + b - p.pad_left;
    if (static_cast<unsigned>(h) >= static_cast<unsigned>(p.target_height) ||
        static_cast<unsigned>(w) >= static_cast<unsigned>(p.target_width)) {
      return;
    }
    float sum[kChannels] = {};
#pragma unroll
    for (int m = 0; m < kTaps; ++m) {
#pragma unroll
      for (int l = 0; l < kTaps; ++l) {
        const int r = a + kPhaseStride * m, s = b + kPhaseStride * l;
        if (r >= kKernel || s >= kKernel) continue;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) sum[c] += weight[r][s][c] * window[m][l][c];
      }
    }
    store_elements(target + h * p.target_h + w * p.target_w, sum);
  };
  int i = first_row;
  do {  // there is at least one row
#pragma unroll
    for (int step = 0; step < kAhead; ++step) {
      if (step > 0 && i >= end_row) break;
      shift_rows(window);
      widen_row(window[0], ahead[step]);
      load_row(ahead[step], i + kAhead);
#pragma unroll
      for (int a = 0; a < kPhaseStride; ++a) {
#pragma unroll
        for (int b = 0; b < kPhaseStride; ++b) store_pixel(i, a, b);
      }
      ++i;
    }
  } while (i < end_row);
}

}  // namespace convx
