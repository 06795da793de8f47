// Grouped convolution with few channels per group on tensor cores: NCHW, 16 bits, from sm_80 on.
//
//     y[k][p][q] = bias[k] + sum over c, r, s of  x[c][row (p, r)][column (q, s)] * w[k][c][r][s]
//     with c running over the channels of the group
//
//      lines in shared memory            one MMA (m16n8k16)
//      4 channels of a pixel = 8 bytes
//      +--------------------------+      A: 16 rows = 4 filters x 4 output rows (or 8 x 2, 16 x 1)
//      | 0 |x x x x x x x x|x x x |         x 4 taps of 4 channels
//      | 0 |x x x x x x x x|x x x |      B: 4 taps of 4 channels x 8 pixels; each lane reads one
//      | 0 |x x[cell  x x] x x x  |         pixel under one tap
//      +--------------------------+
//
// Tile: some output rows of a few groups. A block computes its tile for several images in turn. The
// weights are loaded once.
//
// Cell: 8 columns of kRows output rows of all filters, 128 outputs. Its rows read overlapping
// source rows, so an MMA covers the taps of all of them, with zero weights where a row does not
// have a tap: the 3x3 taps of 4 rows fill 18 of the 20 places in 5 MMAs.
//
// Warps: 8, all with the same role in three phases per image. They load source rows through
// registers, where four channels are interleaved (padding is cleared once; grouped_mma_stage.cuh),
// compute kCells cells below each other at a time, and store. Blocks on a multiprocessor overlap:
// while some wait for memory, others compute.
//
// Stores: outputs are collected in shared memory in the layout of the target and leave 16 bytes at
// a time (ResultPlace).
//
// Non-finite values: a zero weight times an infinity is NaN, which the definition does not have. A
// warp that finds NaN among its accumulators recomputes them one output row at a time, with the
// taps of the other rows left out.
//
// Shared memory:
//     lines      [group][row][quad of channels][pixel][channel]
//     places     [line] StagedLine
//     quads      [step][4] TapQuad
//     fragments  [group][step][lane][4 words], the A operands
//     bias       [group][filter], float32
//     results    outputs, see ResultSpans
// Cost: two steps of 7 cells are 57 instructions, 14 of them MMAs (SASS count, 2026-11-15;
// docs/engines/cuda_grouped.md).
// Grid: column tiles fastest, then row tiles, groups, images, so that neighbours share data in L2.
#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "device/convert.cuh"
#include "device/mma.cuh"
#include "engines/cuda/grouped/grouped_mma_stage.cuh"
#include "kernels/epilogue.cuh"

namespace convx {

// The tile's outputs of one image. Every output has the same offset within 16 bytes in shared
// memory as in the target: the first one begins at `phase`, and the pitches preserve that.
template <typename T>
struct ResultPlace {
  T* target;  // the tile's first output
  T* shared;  // aligned to 16 bytes
  int phase;  // offset of the first output from `shared`, in elements

  // `image` counts from the block's first.
  __device__ __forceinline__ ResultPlace(const GroupedMmaParams& p, const GroupedBlock& block,
                                         int image, T* results)
      : target(static_cast<T*>(p.target) + (block.first_image + image) * p.target_n +
               int64_t{block.first_group} * p.target_channels * p.target_c +
               block.first_row * p.target_h + block.first_column),
        shared(results),
        phase(reinterpret_cast<uintptr_t>(target) / sizeof(T) % kResultChunk) {}

  // `filter` counts through the tile's groups.
  __device__ __forceinline__ int locate(const GroupedMmaParams& p, int filter, int row) const {
    return phase + filter * p.filter_pitch + row * p.row_pitch;
  }
};

// Stores all spans. Called by all threads of the block.
template <typename T>
__device__ __forceinline__ void write_results(const GroupedMmaParams& p, const GroupedBlock& block,
                                              const ResultPlace<T>& place) {
  const int filters = block.groups * p.target_channels;
  int spans = 1;
  int length = filters * block.rows * block.columns;
  if (p.spans == ResultSpans::kFilters) {
    spans = filters;
    length = block.rows * block.columns;
  } else if (p.spans == ResultSpans::kRows) {
    spans = filters * p.tile_rows;
    length = block.columns;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < spans * p.span_chunks; i += kGroupedMmaThreads) {
    int filter = i;
    const int chunk = p.by_span_chunks.split(filter);
    const int row = p.spans == ResultSpans::kRows ? p.by_tile_rows.split(filter) : 0;
    const int start = place.locate(p, filter, row);
    // An index within the span; negative in the first chunk.
    const int first = chunk * kResultChunk - start % kResultChunk;
    if (first >= length || row >= block.rows) continue;
    const T* from = place.shared + start + first;
    T* to = place.target + filter * p.target_c + row * p.target_h + first;
    if (first >= 0 && first + kResultChunk <= length) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
#pragma unroll 1
      for (int e = max(0, -first); e < min(kResultChunk, length - first); ++e) to[e] = from[e];
    }
  }
}

// kCells cells of a group below each other, computed by one warp. A lane reads pixel lane / 4 of
// each cell and holds the accumulators of two columns in MMA rows lane / 4 and lane / 4 + 8.
template <typename T, int kFilters, int kCells>
struct CellJob {
  static constexpr int kRows = count_window_rows(kFilters);
  using Accumulators = float[kCells][4];

  const GroupedMmaParams& p;
  const TapQuad* quads;        // the lane's quad of the first step
  const uint4* fragments;      // the lane's words of the group's first step
  const float* bias;           // bias of the group's filters
  const unsigned char* lines;  // read position of the lane for the first cell
  int group;
  int first_row, first_column;  // counted from the tile's

  // Jobs count along the octets of a row of cells first, then down.
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

  // Filter and row of the cell that the lane's accumulators belong to; each half has two of them.
  static __device__ __forceinline__ int filter_of(int half) {
    return (threadIdx.x % 32 / 4 + 8 * half) % kFilters;
  }
  static __device__ __forceinline__ int row_of(int half) {
    return (threadIdx.x % 32 / 4 + 8 * half) / kFilters;
  }

  // If kAllRows is false, only the taps of `only_rows` are multiplied; other pixels count as zeros.
  template <bool kAllRows>
  __device__ __forceinline__ void multiply(Accumulators& accumulators, unsigned only_rows) const {
    const float start[2] = {bias[filter_of(0)], bias[filter_of(1)]};
#pragma unroll
    for (int j = 0; j < kCells; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) accumulators[j][i] = start[i / 2];
    }
    const TapQuad* quad = quads;
    const uint4* fragment = fragments;
    int step = p.steps;
#pragma unroll 2
    do {  // steps > 0
      const uint32_t a[4] = {fragment->x, fragment->y, fragment->z, fragment->w};
      const unsigned char* from = lines + quad->offset;
      const bool counts = kAllRows || (quad->rows & only_rows) != 0;
#pragma unroll
      for (int j = 0; j < kCells; ++j) {
        QuadPixel pixel = *reinterpret_cast<const QuadPixel*>(from + j * p.window_bytes);
        if (!counts) pixel = QuadPixel{0, 0};
        Mma<T>::multiply(accumulators[j], a, pixel.x, pixel.y);
      }
      quad += kStepQuads;
      fragment += 32;
    } while (--step > 0);
  }

  // Recomputes the accumulators, one output row at a time.
  __device__ __forceinline__ void multiply_by_rows(Accumulators& accumulators) const {
#pragma unroll 1
    for (int row = 0; row < kRows; ++row) {
      Accumulators of_row;
      multiply<false>(of_row, 1u << row);
#pragma unroll
      for (int j = 0; j < kCells; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (row_of(i / 2) == row) accumulators[j][i] = of_row[j][i];
        }
      }
    }
  }

  static __device__ __forceinline__ bool any_nan(const Accumulators& accumulators) {
    float all = 0;
#pragma unroll
    for (int j = 0; j < kCells; ++j) {
      all += (accumulators[j][0] + accumulators[j][1]) + (accumulators[j][2] + accumulators[j][3]);
    }
    return __any_sync(0xffffffffu, all != all);  // also true if infinities of both signs cancel
  }

  // Writes the outputs to shared memory. If kPairs is true, two columns are one aligned word.
  template <bool kPairs>
  __device__ __forceinline__ void put(const GroupedBlock& block, const ResultPlace<T>& place,
                                      const Accumulators& accumulators) const {
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
            *reinterpret_cast<uint32_t*>(to) = narrow(accumulators[j], 2 * half, T{});
          } else {
            to[0] = round_to<T>(accumulators[j][2 * half]);
            if (column + 1 < block.columns) to[1] = round_to<T>(accumulators[j][2 * half + 1]);
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
    __syncthreads();  // lines are staged, and the previous outputs have been written
    const ResultPlace<T> place(p, block, image, results);
#pragma unroll 1
    for (int index = threadIdx.x / 32; index < jobs; index += kGroupedMmaThreads / 32) {
      const Job job(p, shared_bytes, index);
      float accumulators[kCells][4];
      job.template multiply<true>(accumulators, 0);
      if (Job::any_nan(accumulators)) job.multiply_by_rows(accumulators);
#pragma unroll
      for (auto& cell : accumulators) all_at_least(cell, p.lowest);
      if (p.pairs) {
        job.template put<true>(block, place, accumulators);
      } else {
        job.template put<false>(block, place, accumulators);
      }
    }
    __syncthreads();  // lines have been read, and outputs are in shared memory
    write_results(p, block, place);
  }
}

template <typename T, int kFilters, int kCells>
__global__ void __launch_bounds__(kGroupedMmaThreads, kGroupedMmaBlocks)
    grouped_mma_kernel(const __grid_constant__ GroupedMmaParams p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  compute_grouped_tile<T, kFilters, kCells>(p, shared_bytes);
#endif
}

void launch_grouped_mma(const LaunchSite& site, const GroupedMmaFit& fit, const Buffers& buffers) {
  const GroupedMmaParams params = make_grouped_mma_params(*site.problem, fit, buffers);
  visit_float_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) {
      launch_listed<kGroupedMmaKernels>(site, fit.kernel, [&]<GroupedMmaKernel kKernel>() {
        launch_kernel<grouped_mma_kernel<T, kKernel.filters, kKernel.cells>>(
            site, fit.blocks, kGroupedMmaThreads, fit.shared_bytes, params);
      });
    }
  });
}

}  // namespace convx
