// Depthwise convolution in NCHW for any kernel: forward and stride-1 input gradient.
//
//     y[p][q] = bias + sum over r, s of  x[row (p, r)][column (q, s)] * w[r][s],   plane by plane
//
//      source rows in shared memory                  outputs in shared memory
//      +--------------------------------+  \         +----------------------------------+
//      | 0 0 | x x x x x x x x x x | 0 0 |  | R-1    | y y y y y y y y y y|y y y y y y y |
//      |     | . . . . . . . . . . |     |  | halo   |y y y|y y y y y y y y y y|y y y y y|
//      |     | [ columns   ] . . . |     |  +        |y y y y y|y y y y y y y y y y|     |
//      |     | [ x 4 rows  ] . . . |     |  | rows   +----------------------------------+
//      |     | [ of one    ] . . . |     |  |        rows are contiguous as in global memory,
//      |     | [ thread    ] . . . |     |  |        so that 16-byte chunks can be stored
//      +--------------------------------+  /
//
// Tile: several planes if planes are small, some rows of one plane if they are large, and part of
// the columns only if rows are too long for shared memory.
//
// 1. The source rows of the tile arrive by cp.async. Padding becomes zeros on the way, so that the
//    arithmetic needs no bounds checks. The weights of the tile's channels become float32.
// 2. A thread computes cells of 4 rows x 4 columns (8 in 16 bits). Stride and
//    dilation are rearranged so that windows slide by one (planning/gather_axis.h): along the width
//    when rows are staged, with one segment per lane and class; along the height when they are
//    read.
// 3. Outputs go through shared memory to the target (plane_store.cuh).
// If a channel has several filters, steps 2 and 3 are repeated for each filter of the block.
// Blocks on a multiprocessor overlap: while some wait for memory, others compute.
//
// Shared memory:
//     lines     [plane][row][segment][column], in the storage type
//     weights   [plane][row tap][column class][tap of class], float32
//     table     [plane] PlaneEntry
//     results   [span][element]
// Each source byte is read about once and each output written once, 16 bytes at a time even if rows
// are not aligned. Which limit applies is measured in docs/engines/cuda_depthwise.md.
// Grid: shares of a channel's filters fastest, then column tiles, row tiles, planes.
#pragma once

#include "engines/cuda/depthwise/element_vector.cuh"
#include "engines/cuda/depthwise/plane_store.cuh"
#include "engines/cuda/depthwise/stage_lines.cuh"
#include "kernels/epilogue.cuh"

namespace convx {

template <typename T>
__device__ inline void stage_plane_lines(const PlaneParams& p, const PlaneBlock& block, T* lines) {
  const CudaAxis& column = p.t.column;
  const auto find_unit = [&](int unit, UnitColumn<T>& to) {
    int segment = unit;
    const int i = p.by_segment_units.split(segment) * p.stage.unit;
    const int lane = segment % column.lanes;
    const int column_class = segment / column.lanes;
    const int x = (block.first_lattice_column + i) * column.period + lane * column.source_step +
                  column_class * column.offset_step + column.offset0;
    to.source = static_cast<const T*>(p.t.source) + x;
    to.shared = lines + segment * p.segment_pitch + i;
    to.inside = static_cast<unsigned>(x) < static_cast<unsigned>(p.t.source_width);
  };
  const auto plane_offset = [&](int plane) {
    int image = block.first_plane + plane;
    const int channel = p.by_channels.split(image);
    return image * p.t.source_n + channel * p.t.source_c;
  };
  const int row_base = block.first_row * p.t.row.source_step + p.t.row.offset0;
  stage_lines<T>(p.stage, p.t, block.planes, row_base, find_unit, plane_offset);
}

// Stages the weights of one filter of each channel in float32, and the table of planes.
template <typename T>
__device__ inline void stage_plane_weights(const PlaneParams& p, const PlaneBlock& block,
                                           int filter, float* weights, PlaneEntry* table) {
  const CudaAxis& row = p.t.row;
  const CudaAxis& column = p.t.column;
  const int taps = row.taps * column.taps;
#pragma unroll 1
  for (int i = threadIdx.x; i < block.planes * taps; i += kDepthwiseThreads) {
    int plane = i;
    int r = p.t.by_taps.split(plane);
    const int s = p.t.by_column_taps.split(r);
    int image = block.first_plane + plane;
    const int64_t channel = p.by_channels.split(image);
    const int64_t offset = p.t.locate_weight(channel * p.t.multiplier + filter, r, s);
    int tap = s;  // within its class
    const int column_class = column.classes == 1 ? 0 : p.by_classes.split(tap);
    weights[plane * p.plane_weights + r * p.weight_pitch + column_class * p.class_taps_pitch +
            tap] = to_accumulate(static_cast<const T*>(p.t.weight)[offset]);
  }
#pragma unroll 1
  for (int plane = threadIdx.x; plane < block.planes; plane += kDepthwiseThreads) {
    int image = block.first_plane + plane;
    const int64_t channel = p.by_channels.split(image);
    const int64_t k = channel * p.t.multiplier + filter;
    const T* bias = static_cast<const T*>(p.t.bias);
    table[plane].bias = bias == nullptr ? 0.0f : to_accumulate(bias[k]);
    table[plane].start = locate_plane<T>(p, block, filter, plane).shared;
  }
}

// Adds kTaps neighbouring taps of `count` rows of taps. The source rows that the thread's four
// output rows need for one row of taps stay in registers; the next row of taps replaces one of
// them. row_step and weight_step are elements between source rows and between rows of weights.
// `rows` is kSkip elements behind a multiple of 16 bytes.
template <int kTaps, int kSkip, typename T>
__device__ __forceinline__ void multiply_taps(const T* rows, int row_step, const float* weights,
                                              int weight_step, int count,
                                              PlaneAccumulators<T>& sum) {
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

// Adds neighbouring taps whose number is known only at run time, 1 to kMaxTaps.
template <int kMaxTaps, int kSkip, typename T>
__device__ __forceinline__ void multiply_some_taps(int taps, const T* rows, int row_step,
                                                   const float* weights, int weight_step, int count,
                                                   PlaneAccumulators<T>& sum) {
  if constexpr (kMaxTaps > 1) {
    if (taps < kMaxTaps) {
      return multiply_some_taps<kMaxTaps - 1, kSkip>(taps, rows, row_step, weights, weight_step,
                                                     count, sum);
    }
  }
  multiply_taps<kMaxTaps, kSkip>(rows, row_step, weights, weight_step, count, sum);
}

// Adds all taps of a cell. kChunk column taps of a class are multiplied at once.
template <int kChunk, typename T>
__device__ __forceinline__ void multiply_cell(const PlaneParams& p, const PlaneCell& cell,
                                              const T* lines, const float* weights,
                                              PlaneAccumulators<T>& sum) {
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

template <typename T>
__device__ inline PlaneCell locate_cell(const PlaneParams& p, int index) {
  PlaneCell cell;
  cell.column = p.by_strips.split(index) * kPlaneColumns<T>;
  cell.column_lane = p.t.column.lanes == 1 ? 0 : p.by_column_lanes.split(index);
  cell.row = p.by_row_groups.split(index) * kPlaneRows;
  cell.row_lane = p.t.row.lanes == 1 ? 0 : p.by_row_lanes.split(index);
  cell.plane = index;
  return cell;
}

// kChunk is the number of column taps multiplied at once. More taps need more registers.
template <typename T, int kChunk>
__global__ void __launch_bounds__(kDepthwiseThreads, plane_blocks_per_sm(sizeof(T), kChunk))
    plane_kernel(const __grid_constant__ PlaneParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* lines = reinterpret_cast<T*>(shared_bytes);
  float* weights = reinterpret_cast<float*>(shared_bytes + p.weights_offset);
  PlaneEntry* table = reinterpret_cast<PlaneEntry*>(shared_bytes + p.table_offset);
  T* results = reinterpret_cast<T*>(shared_bytes + p.results_offset);
  const PlaneBlock block = locate_plane_block(p);
  stage_plane_lines(p, block, lines);
  commit_copies();
  for (int filter = block.first_filter; filter < block.last_filter; ++filter) {
    stage_plane_weights<T>(p, block, filter, weights, table);
    wait_copies<0>();
    __syncthreads();
    for (int index = threadIdx.x; index < p.cells; index += kDepthwiseThreads) {
      const PlaneCell cell = locate_cell<T>(p, index);
      if (cell.plane >= block.planes) break;
      const PlaneEntry entry = table[cell.plane];
      PlaneAccumulators<T> sum;
      fill(sum, entry.bias);
      multiply_cell<kChunk>(p, cell, lines, weights, sum);
#pragma unroll
      for (int j = 0; j < kPlaneRows; ++j) all_at_least(sum[j], p.t.lowest);
      put_results(p, block, cell, entry.start, sum, results);
    }
    __syncthreads();
    write_results(p, block, filter, results);
  }
}

}  // namespace convx
