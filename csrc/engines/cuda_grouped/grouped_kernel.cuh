// Convolutions with few channels per group over planes whose columns are neighbours in memory
// (NCHW).
//
// A few channels in and a few filters out are too little for tensor cores, and little enough for
// one pass: the bytes decide as long as each value costs few instructions beside its products.
//
//      one channel's source rows             a thread's cell
//      in shared memory
//      +-------------------------+ \         4 filters, each
//      |0|x x x x x x x x x x|0|  | halo     [ y y y y ]
//      | |. . . . . . . . . .| |  +          [ y y y y ]  4 rows x 4 columns of sums
//      | |[cell ] . . . . . .| |  | rows     [ y y y y ]  in registers
//      | |[x 4  ] . . . . . .| |  |          [ y y y y ]
//      +-------------------------+ /
//
// 1. A tile is some output rows of a few planes (a plane here: the channels of one group of one
//    image). Channels come in chunks of up to four by asynchronous copies, two chunks under way,
//    padding as zeros (grouped_stage.cuh). 16-bit values stay so until they are read.
// 2. Each thread computes one cell. A source row's values are read, and converted, once for all
//    taps of the row and all filters; (4 + R-1)/4 times altogether. A tap's weights for the
//    cell's filters are one vector, the same for nearly all threads of a warp
//    (grouped_multiply.cuh).
// 3. Four columns of a row leave as one vector where rows are aligned, else one by one.
// Blocks on a multiprocessor overlap: while some wait for memory, others multiply.
//
// Shared memory: lines [buffer][channel of chunk][plane][row][segment][column] of the storage type,
// weights in float32 (see stage_weights).
// Grid: column tiles fastest, then row tiles, then planes, so that neighbours meet in L2.
#pragma once

#include "engines/cuda_grouped/grouped_multiply.cuh"
#include "engines/cuda_grouped/grouped_stage.cuh"

namespace convx {

// Which part of a tile a thread computes.
struct GroupedCell {
  int plane, part;  // part: which filters
  int row, column;  // the first of each, counted from the tile's
  bool active;      // some of it exists
};

__device__ inline GroupedCell locate_grouped_cell(const GroupedParams& p,
                                                  const GroupedBlock& block) {
  GroupedCell cell;
  int index = threadIdx.x;
  cell.active = index < p.cells;
  cell.column = p.by_strips.split(index) * kCellColumns;
  cell.row = p.by_row_groups.split(index) * kCellRows;
  cell.part = p.by_parts.split(index);
  cell.plane = index;
  cell.active = cell.active && cell.plane < block.planes && cell.row < block.rows &&
                cell.column < block.columns;
  return cell;
}

// Sums begin with the bias.
template <int kFilters, typename T>
__device__ __forceinline__ void start_cell_sums(const GroupedParams& p, const GroupedBlock& block,
                                                const GroupedCell& cell, CellSums<kFilters>& sum) {
  int image = block.first_plane + cell.plane;
  const int group = p.by_groups.split(image);
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    const int filter = cell.part * kFilters + f;
    float bias = 0.0f;
    if (p.bias != nullptr && cell.active && filter < p.target_channels) {
      const int64_t k = int64_t{group} * p.target_channels + filter;
      bias = to_accumulate(static_cast<const T*>(p.bias)[k]);
    }
#pragma unroll
    for (int j = 0; j < kCellRows; ++j) {
#pragma unroll
      for (int x = 0; x < kCellColumns; ++x) sum[f][j][x] = bias;
    }
  }
}

template <int kFilters, typename T>
__device__ __forceinline__ void store_cell_sums(const GroupedParams& p, const GroupedBlock& block,
                                                const GroupedCell& cell,
                                                const CellSums<kFilters>& sum) {
  int image = block.first_plane + cell.plane;
  const int group = p.by_groups.split(image);
  const int filters =
      p.target_channels - cell.part * kFilters;  // that exist, from the part's first
  const int rows = block.rows - cell.row;
  const int columns = block.columns - cell.column;
  T* plane = static_cast<T*>(p.target) + image * p.target_n +
             (int64_t{group} * p.target_channels + cell.part * kFilters) * p.target_c +
             (block.first_row + cell.row) * p.target_h + block.first_column + cell.column;
  // store(to, row of sums)
  const auto store_rows = [&](const auto& store) {
#pragma unroll
    for (int f = 0; f < kFilters; ++f) {
      T* to = plane;
#pragma unroll
      for (int j = 0; j < kCellRows; ++j) {
        if (f < filters && j < rows) store(to, sum[f][j]);
        to += p.target_h;
      }
      plane += p.target_c;
    }
  };
  if (p.vector_stores) {
    store_rows([](T* to, const float (&from)[kCellColumns]) { store_vector(to, from); });
  } else {
    store_rows([&](T* to, const float (&from)[kCellColumns]) {
#pragma unroll
      for (int x = 0; x < kCellColumns; ++x) {
        if (x < columns) to[x] = round_to<T>(from[x]);
      }
    });
  }
}

template <typename T, ColumnWindow kWindow, int kFilters>
__global__ void __launch_bounds__(count_resident_threads(kWindow), 1)
    grouped_kernel(const __grid_constant__ GroupedParams p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  T* lines = reinterpret_cast<T*>(shared_bytes);
  float* weights = reinterpret_cast<float*>(shared_bytes + p.weights_offset);
  const GroupedBlock block = locate_grouped_block(p);
  // A group of copies per chunk, empty ones too, so that waiting can count them.
#pragma unroll
  for (int chunk = 0; chunk < kBuffers; ++chunk) {
    if (chunk < p.chunks) stage_chunk(p, block, chunk, lines + chunk * p.buffer_pitch);
    commit_copies();
  }
  stage_weights<kFilters, T>(p, block, weights);
  const GroupedCell cell = locate_grouped_cell(p, block);
  CellSums<kFilters> sum;
  start_cell_sums<kFilters, T>(p, block, cell, sum);
  const int cell_lines = cell.plane * p.plane_pitch + cell.row * p.row_step + p.cell_start +
                         cell.column * window_stride(kWindow);
  const float* cell_weights =
      weights + (cell.plane * static_cast<int>(p.by_parts.divisor) + cell.part) * p.part_weights;
  for (int chunk = 0; chunk < p.chunks; ++chunk) {
    wait_copies<kBuffers - 1>();
    __syncthreads();
    T* buffer = lines + chunk % kBuffers * p.buffer_pitch;
    if (cell.active) {
      const T* from = buffer + cell_lines;
      const int channels = min(p.chunk, p.source_channels - chunk * p.chunk);
      int c = 0;
      do {
        multiply_channel<kWindow, kFilters>(p, from, cell_weights, sum);
        from += p.channel_pitch;
        cell_weights += p.channel_weights;
      } while (++c < channels);
    }
    if (chunk + kBuffers < p.chunks) {
      __syncthreads();  // the buffer has been read
      stage_chunk(p, block, chunk + kBuffers, buffer);
    }
    commit_copies();
  }
  if (cell.active) store_cell_sums<kFilters, T>(p, block, cell, sum);
}

}  // namespace convx
