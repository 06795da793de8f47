// Grouped convolution with few channels per group on FFMA units: NCHW, float32, and 16 bits where
// the tensor-core kernel (grouped_mma_kernel.cu) does not apply or is predicted to be slower.
//
//     y[k][p][q] = bias[k] + sum over c, r, s of  x[c][row (p, r)][column (q, s)] * w[k][c][r][s]
//     with c running over the channels of the group
//
//      source rows of one channel            the cell of a thread
//      in shared memory
//      +-------------------------+ \         4 filters, each with
//      |0|x x x x x x x x x x|0|  | halo     [ y y y y ]
//      | |. . . . . . . . . .| |  +          [ y y y y ]  4 rows x 4 columns of accumulators
//      | |[cell ] . . . . . .| |  | rows     [ y y y y ]  in registers
//      | |[x 4  ] . . . . . .| |  |          [ y y y y ]
//      +-------------------------+ /
//
// Tile: some output rows of a few groups. A block computes its tile for several images in turn. The
// weights are loaded once.
//
// Pipeline: channels arrive in chunks of up to four by cp.async, with zeros for padding
// (grouped_stage.cuh). While one chunk is multiplied, the next one, of the same image or the next,
// is in flight. 16-bit values are converted when they are read.
//
// Threads: each computes one cell. A source row is read and converted once for all taps of a row
// and all filters, (4 + R-1)/4 times altogether. The weights of a tap for the cell's filters are
// one vector, the same for nearly all threads of a warp (grouped_multiply.cuh).
//
// Stores: four columns of a row are one vector if rows are aligned; otherwise two or one.
//
// Shared memory:
//     lines     [buffer][channel of chunk][group][row][segment][column], in the storage type
//     weights   float32, see stage_weights
//     bias      float32, see stage_bias
//     places    [thread] ThreadPlaces
// Cost: every instruction beside the multiply-adds counts. A 3x3 cell takes 617 instructions per
// channel for 576 of them in float32 (docs/engines/cuda_grouped.md).
// Grid: column tiles fastest, then row tiles, groups, images, so that neighbours share data in L2.
#pragma once

#include "engines/cuda/grouped/grouped_multiply.cuh"
#include "engines/cuda/grouped/grouped_stage.cuh"
#include "kernels/epilogue.cuh"

namespace convx {

// The cell of a thread within the tile.
struct GroupedCell {
  int group, filter_set;  // filter_set: index of the cell's filters within the group
  int row, column;        // first row and column, counted from the tile's
  bool active;            // at least one output of the cell exists
};

__device__ inline GroupedCell locate_grouped_cell(const GroupedParams& p,
                                                  const GroupedBlock& block) {
  GroupedCell cell;
  int index = threadIdx.x;
  cell.active = index < p.cells;
  cell.column = p.by_strips.split(index) * kCellColumns;
  cell.row = p.by_row_groups.split(index) * kCellRows;
  cell.filter_set = p.by_filter_sets.split(index);
  cell.group = index;
  cell.active = cell.active && cell.group < block.groups && cell.row < block.rows &&
                cell.column < block.columns;
  return cell;
}

// Initializes the accumulators with the bias.
template <int kFilters>
__device__ __forceinline__ void start_cell(const float* bias, CellAccumulators<kFilters>& sum) {
  float start[kFilters];
  load_weights(start, bias);
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
#pragma unroll
    for (int j = 0; j < kCellRows; ++j) {
#pragma unroll
      for (int x = 0; x < kCellColumns; ++x) sum[f][j][x] = start[f];
    }
  }
}

template <int kFilters>
__device__ inline CellTarget locate_target(const GroupedParams& p, const GroupedBlock& block,
                                           const GroupedCell& cell) {
  const auto clip = [](int count, int most) { return static_cast<int16_t>(min(count, most)); };
  const int64_t group = block.first_group + cell.group;
  CellTarget target;
  target.first = block.first_image * p.target_n +
                 (group * p.target_channels + cell.filter_set * kFilters) * p.target_c +
                 (block.first_row + cell.row) * p.target_h + block.first_column + cell.column;
  target.filters = clip(p.target_channels - cell.filter_set * kFilters, kFilters);
  target.rows = clip(block.rows - cell.row, kCellRows);
  target.columns = clip(block.columns - cell.column, kCellColumns);
  return target;
}

// Stores vectors of kWidth columns. The number of existing columns is a multiple of kWidth.
template <int kWidth, int kFilters, typename T>
__device__ __forceinline__ void store_cell_rows(const GroupedParams& p, const CellTarget& cell,
                                                T* target, const CellAccumulators<kFilters>& sum) {
  struct alignas(kWidth * sizeof(T)) Vector {
    T v[kWidth];
  };
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    T* to = target;
#pragma unroll
    for (int j = 0; j < kCellRows; ++j) {
#pragma unroll
      for (int x = 0; x < kCellColumns; x += kWidth) {
        if (f < cell.filters && j < cell.rows && (x == 0 || x < cell.columns)) {
          Vector vector;
#pragma unroll
          for (int i = 0; i < kWidth; ++i) vector.v[i] = round_to<T>(sum[f][j][x + i]);
          *reinterpret_cast<Vector*>(to + x) = vector;
        }
      }
      to += p.target_h;
    }
    target += p.target_c;
  }
}

// `image` counts from the block's first.
template <int kFilters, typename T>
__device__ __forceinline__ void store_cell(const GroupedParams& p, CellTarget cell, int image,
                                           CellAccumulators<kFilters>& sum) {
  T* target = static_cast<T*>(p.target) + cell.first + image * p.target_n;
#pragma unroll
  for (auto& of_filter : sum) {
#pragma unroll
    for (auto& of_row : of_filter) all_at_least(of_row, p.lowest);
  }
  if (p.store_width == 4) {
    store_cell_rows<4, kFilters>(p, cell, target, sum);
  } else if (p.store_width == 2) {
    store_cell_rows<2, kFilters>(p, cell, target, sum);
  } else {
    store_cell_rows<1, kFilters>(p, cell, target, sum);
  }
}

template <typename T, ColumnWindow kWindow, int kFilters>
__global__ void __launch_bounds__(count_resident_threads(kWindow), 1)
    grouped_kernel(const __grid_constant__ GroupedParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* lines = reinterpret_cast<T*>(shared_bytes);
  float* weights = reinterpret_cast<float*>(shared_bytes + p.weights_offset);
  float* bias = reinterpret_cast<float*>(shared_bytes + p.bias_offset);
  ThreadPlaces& places =
      reinterpret_cast<ThreadPlaces*>(shared_bytes + p.places_offset)[threadIdx.x];
  const GroupedBlock block = locate_grouped_block(p);
  places.unit = locate_unit(p, block, threadIdx.x);
  // A step is one chunk of one image. Every step commits one group of copies, even an empty one, so
  // that waiting can count groups.
  const int steps = block.images * p.chunks;
  int staged_image = 0;
  int staged_chunk = 0;
  const auto stage_next = [&](T* buffer) {
    // If a line has more units than the block has threads, a thread copies several.
    StagedUnit next = places.unit;
    for (int index = threadIdx.x;;) {
      stage_chunk(p, block, next, staged_image, staged_chunk, buffer);
      index += blockDim.x;
      if (index - static_cast<int>(threadIdx.x) >= p.stage.units) break;
      next = locate_unit(p, block, index);
    }
    if (++staged_chunk == p.chunks) {
      staged_chunk = 0;
      ++staged_image;
    }
  };
  for (int buffer = 0; buffer < p.buffers; ++buffer) {
    if (buffer < steps) stage_next(lines + buffer * p.buffer_pitch);
    commit_copies();
  }
  stage_weights<kFilters, T>(p, block, weights);
  stage_bias<kFilters, T>(p, block, bias);
  const GroupedCell cell = locate_grouped_cell(p, block);
  const int cell_lines = cell.group * p.group_pitch + cell.row * p.row_step + p.cell_start +
                         cell.column * window_stride(kWindow);
  const int set = cell.group * static_cast<int>(p.by_filter_sets.divisor) + cell.filter_set;
  places.target = locate_target<kFilters>(p, block, cell);
  CellAccumulators<kFilters> sum;
  int image = 0;
  int chunk = 0;
  T* buffer = lines;
  for (int step = 0; step < steps; ++step) {
    if (p.buffers == 1) {
      wait_copies<0>();
    } else {
      wait_copies<kMostBuffers - 1>();
    }
    __syncthreads();
    if (cell.active) {
      if (chunk == 0) start_cell<kFilters>(bias + set * kFilters, sum);
      const T* from = buffer + cell_lines;
      const float* cell_weights =
          weights + set * p.set_weights + chunk * p.chunk * p.channel_weights;
      const int channels = min(p.chunk, p.source_channels - chunk * p.chunk);
      int c = 0;
      do {
        if constexpr (kWindow == ColumnWindow::kSegments) {
          multiply_segments<kFilters>(p, from, cell_weights, sum);
        } else {
          multiply_3x3<kWindow, kFilters>(p, from, cell_weights, sum);
        }
        from += p.channel_pitch;
        cell_weights += p.channel_weights;
      } while (++c < channels);
    }
    if (step + p.buffers < steps) {
      __syncthreads();  // all threads have read the buffer
      stage_next(buffer);
    }
    commit_copies();
    if (p.buffers > 1) buffer = lines + (step + 1) % kMostBuffers * p.buffer_pitch;
    if (++chunk == p.chunks) {
      chunk = 0;
      if (cell.active) store_cell<kFilters, T>(p, places.target, image, sum);
      ++image;
    }
  }
}

}  // namespace convx
