// Convolutions with few channels per group in 16 bits, by tensor cores (NCHW, sm_80 on).
//
//      lines in shared memory            a product of tensor cores
//      4 channels of a pixel = 8 bytes
//      +--------------------------+      first operand:  16 rows = 4 filters x 4 rows of results
//      | 0 |x x x x x x x x|x x x |                      (or 8 x 2, 16 x 1), by 4 taps x 4 channels
//      | 0 |x x x x x x x x|x x x |      second operand: 4 taps x 4 channels, by 8 pixels
//      | 0 |x x[cell  x x] x x x  |      each lane reads one pixel under one tap
//      +--------------------------+
//
// 1. A tile is some output rows of a few groups; a block computes it for some images, one after the
//    other. Source rows come through registers, where four channels are put side by side; what is
//    padding is cleared once (grouped_mma_stage.cuh).
// 2. A cell is 8 columns of kRows rows of all filters: 128 results. Its rows read overlapping
// source
//    rows, so a product's taps are those of all of them, and weights are zero where a row does not
//    have a tap: 3x3 taps for 4 rows are 18 of 20 that 5 products have. A zero times an infinity
//    is none, so a warp that finds NaN among its sums computes them again, row by row with other
//    rows' taps left out.
// 3. Results are put together in shared memory as they lie in the target, and leave 16 bytes at a
//    time (grouped_mma_store.cuh), while others' pixels come in.
// Blocks on a multiprocessor overlap: while some wait for memory, others multiply.
//
// Shared memory: lines [group][row][quad of channels][pixel][channel]; StagedLines; TapQuads;
// fragments; bias; results. Grid: column tiles fastest, then row tiles, groups, images, so that
// neighbours meet in L2.
#pragma once

#include "device/mma.cuh"
#include "engines/cuda_grouped/grouped_mma_stage.cuh"
#include "engines/cuda_grouped/grouped_mma_store.cuh"

namespace convx {

// Some cells of a group below each other, by a warp. A lane reads pixel lane / 4 of each cell, and
// holds sums of two neighbouring columns for rows lane / 4 and lane / 4 + 8 of the product.
template <typename T, int kFilters, int kCells>
struct CellJob {
  static constexpr int kRows = count_window_rows(kFilters);
  using Sums = float[kCells][4];

  const GroupedMmaParams& p;
  const TapQuad* quads;        // of the lane
  const uint4* fragments;      // of the group and lane
  const float* bias;           // of the group
  const unsigned char* lines;  // where the lane begins to read for the first cell
  int group;
  int first_row, first_column;  // counted from the tile's

  // Jobs count along a window's octets first, then down.
  __device__ __forceinline__ CellJob(const GroupedMmaParams& params, const unsigned char* shared,
                                     int job)
      : p(params) {
    const int lane = threadIdx.x % 32;
    int window = p.by_group_jobs.split(job);
    const int octet = p.by_octets.split(window);
    window *= kCells;
    group = job;
    quads = reinterpret_cast<const TapQuad*>(shared + p.quads_offset) + lane % 4;
    fragments =
        reinterpret_cast<const uint4*>(shared + p.fragments_offset) + group * p.steps * 32 + lane;
    bias = reinterpret_cast<const float*>(shared + p.bias_offset) + group * kFilters;
    lines = shared + (group * p.group_bytes + p.cell_start + window * p.window_bytes +
                      octet * p.octet_bytes + lane / 4 * p.pixel_bytes);
    first_row = window * kRows;
    first_column = octet * kOctet;
  }

  // Which filter and which row of a cell a lane's sums are, two of each half.
  static __device__ __forceinline__ int filter_of(int half) {
    return (threadIdx.x % 32 / 4 + 8 * half) % kFilters;
  }
  static __device__ __forceinline__ int row_of(int half) {
    return (threadIdx.x % 32 / 4 + 8 * half) / kFilters;
  }

  // only_rows: taps of these rows alone are multiplied; others' pixels count as zeros.
  template <bool kAllRows>
  __device__ __forceinline__ void multiply(Sums& sums, unsigned only_rows) const {
    const float start[2] = {bias[filter_of(0)], bias[filter_of(1)]};
#pragma unroll
    for (int j = 0; j < kCells; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][i] = start[i / 2];
    }
    const TapQuad* quad = quads;
    const uint4* fragment = fragments;
    int step = p.steps;
#pragma unroll 2
    do {  // there is one at least
      const uint32_t a[4] = {fragment->x, fragment->y, fragment->z, fragment->w};
      const unsigned char* from = lines + quad->offset;
      const bool counts = kAllRows || (quad->rows & only_rows) != 0;
#pragma unroll
      for (int j = 0; j < kCells; ++j) {
        QuadPixel pixel = *reinterpret_cast<const QuadPixel*>(from + j * p.window_bytes);
        if (!counts) pixel = QuadPixel{0, 0};
        Mma<T>::multiply(sums[j], a, pixel.x, pixel.y);
      }
      quad += kStepQuads;
      fragment += 32;
    } while (--step > 0);
  }

  // The same with the taps of one row at a time.
  __device__ __forceinline__ void multiply_by_rows(Sums& sums) const {
#pragma unroll 1
    for (int row = 0; row < kRows; ++row) {
      Sums of_row;
      multiply<false>(of_row, 1u << row);
#pragma unroll
      for (int j = 0; j < kCells; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (row_of(i / 2) == row) sums[j][i] = of_row[j][i];
        }
      }
    }
  }

  static __device__ __forceinline__ bool any_nan(const Sums& sums) {
    float all = 0;
#pragma unroll
    for (int j = 0; j < kCells; ++j) {
      all += (sums[j][0] + sums[j][1]) + (sums[j][2] + sums[j][3]);
    }
    return __any_sync(0xffffffffu, all != all);  // or infinities of both signs
  }

  // Puts the results where they will be written from.
  template <bool kPairs>
  __device__ __forceinline__ void put(const GroupedBlock& block, const ResultPlace<T>& place,
                                      const Sums& sums) const {
    const int column = first_column + threadIdx.x % 4 * 2;
    if (column >= block.columns) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int filter = filter_of(half);
      if (filter >= p.target_channels) continue;
      const int row = first_row + row_of(half);
      T* to = place.shared + (place.locate(p, group * p.target_channels + filter, row) + column);
#pragma unroll
      for (int j = 0; j < kCells; ++j) {
        if (row + j * kRows < block.rows) {
          if constexpr (kPairs) {
            *reinterpret_cast<uint32_t*>(to) = narrow(sums[j], 2 * half, T{});
          } else {
            to[0] = round_to<T>(sums[j][2 * half]);
            if (column + 1 < block.columns) to[1] = round_to<T>(sums[j][2 * half + 1]);
          }
        }
        to += kRows * p.row_pitch;
      }
    }
  }
};

template <typename T, int kFilters, int kCells>
__device__ __forceinline__ void compute_grouped_tile(const GroupedMmaParams& p,
                                                     unsigned char* shared_bytes) {
  using Job = CellJob<T, kFilters, kCells>;
  QuadPixel* lines = reinterpret_cast<QuadPixel*>(shared_bytes);
  StagedLine* places = reinterpret_cast<StagedLine*>(shared_bytes + p.places_offset);
  TapQuad* quads = reinterpret_cast<TapQuad*>(shared_bytes + p.quads_offset);
  T* results = reinterpret_cast<T*>(shared_bytes + p.results_offset);
  const GroupedBlock block = locate_grouped_block(p);
  locate_lines(p, block, places);
  locate_tap_quads<Job::kRows>(p, quads);
  clear_lines(reinterpret_cast<uint4*>(shared_bytes), p.places_offset / 16);
  stage_filter_bias<kFilters, T>(p, block, reinterpret_cast<float*>(shared_bytes + p.bias_offset));
  __syncthreads();
  stage_fragments<kFilters, T>(p, block, quads,
                               reinterpret_cast<uint32_t*>(shared_bytes + p.fragments_offset));
  const int jobs = block.groups * static_cast<int>(p.by_group_jobs.divisor);
  for (int image = 0; image < block.images; ++image) {
    stage_image<T>(p, block, image, places, lines);
    __syncthreads();  // lines are there, and the results before have been written
    const ResultPlace<T> place(p, block, image, results);
#pragma unroll 1
    for (int index = threadIdx.x / 32; index < jobs; index += kGroupedMmaThreads / 32) {
      const Job job(p, shared_bytes, index);
      float sums[kCells][4];
      job.template multiply<true>(sums, 0);
      if (Job::any_nan(sums)) job.multiply_by_rows(sums);
      if (p.pairs) {
        job.template put<true>(block, place, sums);
      } else {
        job.template put<false>(block, place, sums);
      }
    }
    __syncthreads();  // lines have been read, and results are there
    write_results(p, block, place);
  }
}

template <typename T, int kFilters, int kCells>
__global__ void __launch_bounds__(kGroupedMmaThreads, kGroupedMmaBlocks)
    grouped_mma_kernel(const __grid_constant__ GroupedMmaParams p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  compute_grouped_tile<T, kFilters, kCells>(p, shared_bytes);
#endif
}

}  // namespace convx
