// Arithmetic of the grouped FFMA kernel: one thread computes a cell of 4 x 4 outputs of
// kFilters filters.
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda/grouped/grouped_geometry.h"

namespace convx {

template <int kFilters>
using CellAccumulators = float[kFilters][kCellRows][kCellColumns];

// The source values of one row that a cell's four columns read under kTaps neighbouring taps:
// column x under tap k is values[x * stride + k]. `from` is aligned to four elements; for whole
// rows, the window begins one element before it.
template <ColumnWindow kWindow, int kTaps>
struct CellWindow {
  static constexpr bool kWhole = kWindow != ColumnWindow::kSegments;
  static constexpr int kStride = window_stride(kWindow);
  static constexpr int kValues = (kCellColumns - 1) * kStride + kTaps;
  static constexpr int kBefore = kWhole ? 1 : 0;
  static constexpr int kVectors = kWhole ? kStride : (kValues + 3) / 4;
  static_assert(!kWhole || kTaps == 3);
  float values[kBefore + kVectors * 4 + 1];

  template <typename T>
  __device__ __forceinline__ void load(const T* from) {
    if constexpr (kWhole) values[0] = to_accumulate(from[-1]);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float vector[4];
      load_vector(vector, from + v * 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[kBefore + v * 4 + i] = vector[i];
    }
    if constexpr (kWhole && kStride == 1) values[kValues - 1] = to_accumulate(from[4]);
  }
};

template <int kFilters>
__device__ __forceinline__ void load_weights(float (&to)[kFilters], const float* from) {
  struct alignas(kFilters * sizeof(float)) Vector {
    float v[kFilters];
  };
  const Vector vector = *reinterpret_cast<const Vector*>(from);
#pragma unroll
  for (int f = 0; f < kFilters; ++f) to[f] = vector.v[f];
}

// Adds kTaps neighbouring column taps of one row of taps. Row j of the cell reads
// window[(first + j) % kCellRows].
template <int kTaps, int kFilters, typename Window>
__device__ __forceinline__ void multiply_tap_row(const Window (&window)[kCellRows], int first,
                                                 const float* weights,
                                                 CellAccumulators<kFilters>& sum) {
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    float weight[kFilters];
    load_weights(weight, weights + k * kFilters);
#pragma unroll
    for (int j = 0; j < kCellRows; ++j) {
      const auto& values = window[(first + j) % kCellRows].values;
#pragma unroll
      for (int x = 0; x < kCellColumns; ++x) {
#pragma unroll
        for (int f = 0; f < kFilters; ++f) {
          sum[f][j][x] += weight[f] * values[x * Window::kStride + k];
        }
      }
    }
  }
}

// Adds kTaps neighbouring column taps of several rows of taps of one channel. The source rows that
// the four output rows need for one row of taps stay in registers; the next row of taps replaces
// one of them. row_step and weight_step lead from one source row, and row of weights, to the next.
// kCount is the number of rows of taps if it is known at compile time; then `count` is ignored.
template <ColumnWindow kWindow, int kTaps, int kCount, int kFilters, typename T>
__device__ __forceinline__ void multiply_cell_taps(const T* rows, int row_step,
                                                   const float* weights, int weight_step, int count,
                                                   CellAccumulators<kFilters>& sum) {
  CellWindow<kWindow, kTaps> window[kCellRows];
#pragma unroll
  for (int j = 0; j < kCellRows - 1; ++j) window[j].load(rows + j * row_step);
  rows += (kCellRows - 1) * row_step;
  const auto add_row = [&](int u) {
    window[(u + kCellRows - 1) % kCellRows].load(rows);
    rows += row_step;
    multiply_tap_row<kTaps>(window, u, weights, sum);
    weights += weight_step;
  };
  if constexpr (kCount > 0) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) add_row(u);
  } else {
    int first = 0;
    do {  // count > 0
#pragma unroll
      for (int u = 0; u < kCellRows; ++u) {
        if (first + u >= count) break;
        add_row(u);
      }
      first += kCellRows;
    } while (first < count);
  }
}

// Adds neighbouring column taps whose number is known only at run time, 1 to kMaxTaps.
template <int kMaxTaps, int kFilters, typename T>
__device__ __forceinline__ void multiply_some_cell_taps(int taps, const T* rows, int row_step,
                                                        const float* weights, int weight_step,
                                                        int count,
                                                        CellAccumulators<kFilters>& sum) {
  if constexpr (kMaxTaps > 1) {
    if (taps < kMaxTaps) {
      return multiply_some_cell_taps<kMaxTaps - 1, kFilters>(taps, rows, row_step, weights,
                                                             weight_step, count, sum);
    }
  }
  multiply_cell_taps<ColumnWindow::kSegments, kMaxTaps, 0, kFilters>(rows, row_step, weights,
                                                                     weight_step, count, sum);
}

// Adds all taps of one channel to a cell. `lines` and `weights` point to the cell's first ones.
// Taps are ordered by class (planning/gather_axis.h), and up to four columns of a class are
// multiplied at once.
template <int kFilters, typename T>
__device__ __forceinline__ void multiply_segments(const GroupedParams& p, const T* lines,
                                                  const float* weights,
                                                  CellAccumulators<kFilters>& sum) {
  constexpr int kMaxTaps = 4;
  const int weight_step = p.row.classes * p.tap_row_weights;
  int row_class = 0;
  do {  // none of these loops is ever empty
    const int rows_of_taps = p.row.count_taps(row_class);
    int column_class = 0;
    do {
      const int taps = p.column.count_taps(column_class);
      const T* segment = lines + column_class * p.segment_pitch;
      const float* class_weights = weights + column_class * p.class_taps_pitch * kFilters;
      int tap = 0;
      do {
        multiply_some_cell_taps<kMaxTaps, kFilters>(min(kMaxTaps, taps - tap), segment + tap,
                                                    p.row_step, class_weights + tap * kFilters,
                                                    weight_step, rows_of_taps, sum);
        tap += kMaxTaps;
      } while (tap < taps);
    } while (++column_class < p.column.classes);
    lines += p.row_class_step;
    weights += p.tap_row_weights;
  } while (++row_class < p.row.classes);
}

// Multiplies all taps of a 3x3 kernel over whole rows.
template <ColumnWindow kWindow, int kFilters, typename T>
__device__ __forceinline__ void multiply_3x3(const GroupedParams& p, const T* lines,
                                             const float* weights,
                                             CellAccumulators<kFilters>& sum) {
  constexpr int kTapRow = 3 * kFilters;  // weights of a row of taps
  if constexpr (kWindow == ColumnWindow::kRows) {
    multiply_cell_taps<kWindow, 3, 3, kFilters>(lines, p.row_step, weights, kTapRow, 3, sum);
  } else {  // rows 0 and 2 of taps read every other source row, row 1 the rows between
    multiply_cell_taps<kWindow, 3, 2, kFilters>(lines, p.row_step, weights, 2 * kTapRow, 2, sum);
    multiply_cell_taps<kWindow, 3, 1, kFilters>(lines + p.row_class_step, p.row_step,
                                                weights + kTapRow, 2 * kTapRow, 1, sum);
  }
}

}  // namespace convx
