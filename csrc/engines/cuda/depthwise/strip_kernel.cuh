// Depthwise convolution in NCHW for common kernel sizes (strip_shapes.h), entirely in registers:
// forward, and stride-1 input gradient.
//
//     y[p][q] = bias + sum over r, s of  x[p * stride + r - pad][q * stride + s - pad] * w[r][s]
//
// A thread owns a few neighbouring columns of a plane, a strip, and goes down the rows. Each source
// row is read once, adds to the accumulators of all output rows that see it, and is dropped:
//
//      source            accumulators in registers, 3x3, stride 1
//      row y     ---->   output y-1: taps of row 2, now complete and stored
//                        output y  : taps of row 1
//                        output y+1: taps of row 0
//      row y+1   ---->   the accumulators move up by one
//
// The weights stay in registers too, so that nearly all instructions are multiply-adds. Columns
// beside the strip come from L1, because the neighbouring thread has just loaded them. There is no
// shared memory and no barrier: the lanes of a warp may work on different planes, and small planes
// leave no lane idle. Source rows are prefetched a few steps ahead.
//
// A step is `stride` source rows and completes one output row. Limit: memory for 3x3; in 16 bits,
// multiply-adds from about 5x5 on (docs/engines/cuda_depthwise.md).
// Grid: strips fastest, then segments of the rows, then planes.
#pragma once

#include "engines/cuda/depthwise/element_vector.cuh"
#include "engines/cuda/depthwise/strip_row.cuh"
#include "kernels/epilogue.cuh"

namespace convx {

// Stores a strip's outputs of one row, or nothing if they are not wanted. Strips begin at multiples
// of their size: one vector store.
template <typename T, int kColumns, bool kShifted>
struct StripStore {
  __device__ __forceinline__ StripStore(int, int) {}

  __device__ __forceinline__ void operator()(T* to, const float (&sum)[kColumns],
                                             bool wanted) const {
    if constexpr (kColumns == 1) {
      if (wanted) *to = round_to<T>(sum[0]);
    } else {
      constexpr int kWords = kColumns * sizeof(T) / 4;
      uint32_t words[kWords];
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = narrow(sum, i * kColumns / kWords, T{});
      if (wanted) store_words<kWords>(to, words);
    }
  }
};

// Rows begin at any multiple of 4 bytes, and the strips of a warp are neighbours. Each lane stores
// the aligned 16 bytes in which its strip begins, with words received from the lane before:
//
//      lane 0        lane 1        lane 2
//      [w w w w]     [w w w w]     [w w w w]           strips, 4 words each
//      |. . w w|w w   w w|w w w w   w w|w w ...        aligned chunks, phase 2
//
// Lane 0 receives the words of the last lane. It stores, word by word, the incomplete chunks at
// both ends of the warp's part of a row. So does the lane in which the row ends.
template <typename T>
struct StripStore<T, 8, true> {
  static constexpr int kStripWords = 4;
  static constexpr int kWarpWords = 32 * kStripWords;
  int lane;
  int words_left;  // words of the row from the strip's first on; may be negative

  __device__ __forceinline__ StripStore(int strip, int columns)
      : lane(static_cast<int>(threadIdx.x) % 32), words_left(columns / 2 - strip * kStripWords) {}

  __device__ __forceinline__ void operator()(T* to, const float (&sum)[8], bool wanted) const {
    uint32_t line[3 + kStripWords];  // the last three words of the previous lane, then its own
#pragma unroll
    for (int i = 0; i < kStripWords; ++i) line[3 + i] = narrow(sum, i * 2, T{});
#pragma unroll
    for (int i = 0; i < 3; ++i) line[i] = __shfl_sync(0xffffffffu, line[4 + i], (lane + 31) % 32);
    const int phase = static_cast<unsigned>(reinterpret_cast<uintptr_t>(to)) / 4 % 4;
    uint32_t even[5];  // line, shifted by the even part of the phase
    uint32_t chunk[4];
#pragma unroll
    for (int i = 0; i < 5; ++i) even[i] = phase & 2 ? line[i] : line[i + 2];
#pragma unroll
    for (int i = 0; i < 4; ++i) chunk[i] = phase & 1 ? even[i] : even[i + 1];

    uint32_t* aligned = reinterpret_cast<uint32_t*>(to) - phase;
    const int end = wanted ? words_left + phase : 0;
    const int first = lane == 0 ? phase : 0;
    if (first == 0 && end >= 4) {
      store_words<4>(aligned, chunk);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int word = i < first ? i + kWarpWords : i;
        if (word < end) aligned[word] = chunk[i];
      }
    }
  }
};

// The strip of a thread.
struct StripPlace {
  int strip, image, filter;  // filter: counted through all channels
  int first_row, end_row;    // output rows
};

__device__ __forceinline__ StripPlace locate_strip(const StripParams& p, int index) {
  StripPlace place;
  place.strip = p.by_strips.split(index);
  place.first_row = p.by_segments.split(index) * p.segment_rows;
  place.end_row = min(place.first_row + p.segment_rows, p.t.row.count);
  place.filter = p.by_filters.split(index);
  place.image = index;
  return place;
}

// kIndex is the shape's index in kStripShapes.
template <typename T, int kIndex, int kColumns>
__global__ void __launch_bounds__(kDepthwiseThreads,
                                  strip_blocks_per_sm(kStripShapes[kIndex], sizeof(T), kColumns))
    strip_kernel(const __grid_constant__ StripParams p) {
  using Row = StripRow<T, kIndex, kColumns>;
  constexpr StripShape kShape = kStripShapes[kIndex];
  constexpr StripReads kReads = Row::kReads;
  constexpr int kStride = kShape.stride;
  constexpr int kAhead = strip_steps_ahead(kShape, kColumns);
  // Output rows that a step adds to: sum[m] belongs to the m-th row before the newest.
  constexpr int kOpenRows = (kShape.row_taps + kStride - 1) / kStride;

  const int index = blockIdx.x * kDepthwiseThreads + threadIdx.x;
  if (index >= p.threads) return;  // whole warps, if lanes exchange words
  const StripPlace place = locate_strip(p, index);
  const DepthwiseTensors& t = p.t;
  const int column = place.strip * kReads.span;

  const auto [first_step, end_step] =
      find_steps<kStride, kOpenRows>(t, place.first_row, place.end_row);
  int step = first_step;
  int y = step * kStride + t.row.offset0;
  int limits[kReads.loads()];
  Row::set_limits(t, column, place.end_row, limits);

  float weight[kShape.row_taps][kShape.column_taps];
  const T* weights = static_cast<const T*>(t.weight) + t.locate_weight(place.filter, 0, 0);
#pragma unroll
  for (auto& taps : weight) {
    const T* next = weights;
#pragma unroll
    for (float& tap : taps) {
      tap = to_accumulate(__ldg(next));
      next += t.column.tap_step * t.weight_s;
    }
    weights += t.row.tap_step * t.weight_r;
  }

  const T* source = static_cast<const T*>(t.source) + place.image * t.source_n +
                    p.by_multiplier.divide(place.filter) * t.source_c + y * t.source_h + column;
  const auto load_step = [&](Row(&rows)[kStride]) {
#pragma unroll
    for (int c = 0; c < kStride; ++c) {
      rows[c].load(source, y, limits);
      source += t.source_h;
      ++y;
    }
  };
  Row rows[kAhead][kStride];
#pragma unroll
  for (int ahead = 0; ahead < kAhead; ++ahead) load_step(rows[ahead]);

  const float bias =
      t.bias == nullptr ? 0.0f : to_accumulate(static_cast<const T*>(t.bias)[place.filter]);
  float sum[kOpenRows][kColumns];
  fill(sum, bias);

  int row = step - (kOpenRows - 1);  // the output row that the step completes
  T* target = static_cast<T*>(t.target) + place.image * t.target_n + place.filter * t.target_c +
              row * t.target_h + place.strip * kColumns;
  const StripStore<T, kColumns, shifts_rows(kShape, kColumns)> store(place.strip, t.column.count);
  const auto finish_row = [&](float (&values)[kColumns], bool wanted) {
    all_at_least(values, t.lowest);
    store(target, values, wanted);
    target += t.target_h;
    ++row;
  };
  do {  // there is at least one step
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      if (ahead > 0 && step >= end_step) break;
#pragma unroll
      for (int c = 0; c < kStride; ++c) {
        float window[kReads.elements()];
        rows[ahead][c].widen_to(window);
#pragma unroll
        for (int m = kOpenRows - 1; m >= 0; --m) {
          const int r = c + m * kStride;
          if (r >= kShape.row_taps) continue;
#pragma unroll
          for (int s = 0; s < kShape.column_taps; ++s) {
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
              sum[m][i] += weight[r][s] * window[kReads.left - kShape.left + i * kStride + s];
            }
          }
        }
      }
      load_step(rows[ahead]);
      finish_row(sum[kOpenRows - 1], row >= place.first_row);
      ++step;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
#pragma unroll
        for (int m = kOpenRows - 1; m > 0; --m) sum[m][i] = sum[m - 1][i];
        sum[0][i] = bias;
      }
    }
  } while (step < end_step);
  // Rows that no further source row adds to.
#pragma unroll
  for (int m = kOpenRows - 1; m > 0; --m) {
    finish_row(sum[m], row >= place.first_row && row < place.end_row);
  }
}

}  // namespace convx
