// Arithmetic of the plane kernel: a thread computes 4 rows of 4 or 8 output columns.
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda/depthwise/depthwise_params.h"

namespace convx {

template <typename T>
using PlaneSums = float[kPlaneRows][kPlaneColumns<T>];

// Adds kTaps neighbouring taps of `count` rows of taps. The source rows that the thread's four
// output rows need for one row of taps stay in registers; the next row of taps replaces one of
// them. row_step and weight_step are elements between source rows and between rows of weights.
// `rows` is kSkip elements behind a multiple of 16 bytes.
template <int kTaps, int kSkip, typename T>
__device__ __forceinline__ void multiply_taps(const T* rows, int row_step, const float* weights,
                                              int weight_step, int count, PlaneSums<T>& sum) {
  constexpr int kColumns = kPlaneColumns<T>;
  constexpr int kVectors = (kColumns + kTaps + 2) / 4;
  constexpr int kWeightVectors = (kTaps + 3) / 4;
  float window[kPlaneRows][kVectors][4];
#pragma unroll
  for (int j = 0; j < kPlaneRows - 1; ++j) {
    load_window<kSkip>(window[j], rows);
    rows += row_step;
  }
  int first = 0;
  do {  // count > 0
#pragma unroll
    for (int u = 0; u < kPlaneRows; ++u) {
      if (first + u >= count) break;
      float weight[kWeightVectors][4];
      load_window<kSkip>(window[(u + kPlaneRows - 1) % kPlaneRows], rows);
#pragma unroll
      for (int v = 0; v < kWeightVectors; ++v) load_vector(weight[v], weights + v * 4);
      rows += row_step;
      weights += weight_step;
#pragma unroll
      for (int j = 0; j < kPlaneRows; ++j) {
        const auto& row = window[(u + j) % kPlaneRows];
#pragma unroll
        for (int k = 0; k < kTaps; ++k) {
#pragma unroll
          for (int x = 0; x < kColumns; ++x) {
            sum[j][x] += weight[k / 4][k % 4] * row[(x + k) / 4][(x + k) % 4];
          }
        }
      }
    }
    first += kPlaneRows;
  } while (first < count);
}

// The same for a number of taps known only at run time, 1 to kMaxTaps.
template <int kMaxTaps, int kSkip, typename T>
__device__ __forceinline__ void multiply_some_taps(int taps, const T* rows, int row_step,
                                                   const float* weights, int weight_step, int count,
                                                   PlaneSums<T>& sum) {
  if constexpr (kMaxTaps > 1) {
    if (taps < kMaxTaps) {
      return multiply_some_taps<kMaxTaps - 1, kSkip>(taps, rows, row_step, weights, weight_step,
                                                     count, sum);
    }
  }
  multiply_taps<kMaxTaps, kSkip>(rows, row_step, weights, weight_step, count, sum);
}

// The cell of a thread within the tile.
struct PlaneCell {
  int plane;
  int row_lane, row;        // outputs (row + j) * lanes + row_lane of the tile
  int column_lane, column;  // outputs (column + x) * lanes + column_lane of the tile
};

// Adds all taps of a cell. kChunk column taps of a class are multiplied at once.
template <int kChunk, typename T>
__device__ __forceinline__ void multiply_cell(const PlaneParams& p, const PlaneCell& cell,
                                              const T* lines, const float* weights,
                                              PlaneSums<T>& sum) {
  const CudaAxis& row = p.t.row;
  const CudaAxis& column = p.t.column;
  lines += cell.plane * p.plane_pitch + cell.row * p.row_step + cell.row_lane * p.row_lane_step +
           cell.column_lane * p.segment_pitch + cell.column;
  weights += cell.plane * p.plane_weights;
  // No loop is ever empty. Do-while saves the compiler a second set of accumulators.
  int column_class = 0;
  do {
    const int taps = column.count_taps(column_class);
    int tap = 0;
    do {
      int row_class = 0;
      do {
        const int some = min(kChunk, taps - tap);
        const int count = row.count_taps(row_class);
        const T* from = lines + tap + row_class * p.row_class_step;
        const float* row_weights = weights + tap + row_class * p.weight_pitch;
        // In 16 bits, every other chunk of 4 taps begins in the middle of 16 bytes.
        if (sizeof(T) == 2 && tap % 8 == 4) {
          multiply_some_taps<kChunk, sizeof(T) == 2 ? 4 : 0>(some, from, p.row_step, row_weights,
                                                             p.weight_step, count, sum);
        } else {
          multiply_some_taps<kChunk, 0>(some, from, p.row_step, row_weights, p.weight_step, count,
                                        sum);
        }
      } while (++row_class < row.classes);
      tap += kChunk;
    } while (tap < taps);
    lines += p.class_step;
    weights += p.class_taps_pitch;
  } while (++column_class < column.classes);
}

}  // namespace convx
