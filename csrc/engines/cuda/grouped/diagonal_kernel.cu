// Grouped convolution on tensor cores: channels_last, TF32 and 16 bits, forward passes and input
// gradients, from sm_80 on.
//
//     y[pixel][k] = bias[k] + sum over taps of  x[pixel under the tap][chunk] * W_tap[chunk][k]
//
//     pixels in shared memory          one MMA, for one tap and source chunk
//     [row][column][32 bytes, ...]     A: 16 pixels x the 32 bytes of a source chunk
//      x x x x x x x x                 B: the channels of the chunk x 8 filters
//      x x x x x x x x
//              filters
//          w w 0 0 0 0 ...             Weights are zero where channel and filter belong to
//     c    w w 0 0 0 0 ...             different groups. With 16 channels in groups of four, a
//          0 0 w w 0 0 ...             quarter of the MMA work is useful, and memory still takes
//          0 0 w w 0 0 ...             longer. Filters of larger groups read several source chunks.
//
// Tile: a block has up to eight chunks of filters, whose weights stay in shared memory, and
// iterates over tiles of pixels. The copies of the next tile (cp.async, two stages) overlap with
// the MMAs of the current one, the first tile's with the loads of the weights; see
// diagonal_stage.cuh.
//
// Phases: the input gradient of a strided layer has one phase per residue of the stride. All phases
// of a tile read the same staged pixels, with different taps.
//
// Warps: 8, all with the same role. A warp computes one filter chunk of 64 (or 16) pixels of a
// phase at a time. For each tap and source chunk it reads their 32 bytes (ldmatrix) and the lane's
// words of weights.
//
// Stores: a lane holds four neighbouring filters of a pixel (two if a chunk has 8), which are 8 or
// 16 bytes, and a quad of lanes stores whole sectors.
//
// Non-finite values: a zero weight times an infinity is NaN, which the definition does not have.
// Accumulators that became NaN are recomputed tap by tap.
//
// Shared memory: the weights, then two stages of pixels (diagonal_geometry.h has the extents).
// Limit: reading the A operand, one ldmatrix (four wavefronts) per tap, 16 pixels and source chunk
// (docs/engines/cuda_diagonal.md).
// Grid: sets of chunks fastest.
#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "device/vectors.cuh"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/grouped/diagonal_stage.cuh"
#include "kernels/finish.cuh"

namespace convx {

template <typename T, int kPieces, int kPixels>
struct DiagonalJob {
  static constexpr int kElement = sizeof(T);
  static constexpr int kFilters = count_chunk_filters(kPieces);
  static constexpr int kWords = count_chunk_words(kPieces);
  static constexpr int kTiles = kPixels / 16;  // MMAs of 16 pixels
  static constexpr int kLaneFilters = 2 * kPieces;
  using Accumulators = float[kTiles * kPieces * 4];

  // Index of an MMA's first accumulator.
  static constexpr int index_accumulator(int i, int n) { return (i * kPieces + n) * 4; }

  const DiagonalParams& p;
  const DiagonalTile& tile;
  const DiagonalPhase &row, &column;
  const DiagonalStep* steps;  // of the phase
  const float* bias;          // of the filter chunk
  uint32_t weights, pixels;   // shared-memory addresses of the filter chunk and its source chunks
  int first_filter;           // first filter of the chunk
  DiagonalSources sources;
  int first;  // first pixel of the warp, counted in the tile

  struct Place {
    int row, column;
  };
  __device__ __forceinline__ Place locate(int pixel) const {
    int row = first + pixel;
    const int column = p.by_tile_columns.split(row);
    return {row, column};
  }
  __device__ __forceinline__ bool exists(const Place& at) const {
    return at.row < p.tile_rows && tile.first_row + at.row < row.count &&
           tile.first_column + at.column < column.count;
  }
  // Address of the pixel's first source chunk, for steps to add to. Pixels below the tile read its
  // first row.
  __device__ __forceinline__ uint32_t find_pixel(const Place& at) const {
    const int down = (at.row < p.tile_rows ? at.row : 0) * p.row.lattice_step;
    const int right = at.column * p.column.lattice_step;
    return pixels + (down * p.staged_columns + right) * p.pixel_bytes;
  }

  __device__ __forceinline__ void multiply(Accumulators& accumulators) const {
    const int lane = threadIdx.x % 32;
    uint32_t from[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      from[i] = find_pixel(locate(16 * i + lane % 16)) + lane / 16 * 16;
    }
#pragma unroll
    for (float& value : accumulators) value = 0;
    const uint32_t words_from = weights + lane * (4 * kWords);
    const DiagonalStep* step = steps;
#pragma unroll 2
    for (int left = row.taps * column.taps * sources.depth; left > 0; --left, ++step) {
      const DiagonalStep at = *step;
      uint32_t words[kWords];
      if constexpr (kWords == 4) {
        load_16_bytes(words_from + at.weight, words);
      } else {
        load_8_bytes(words_from + at.weight, words);
      }
      uint32_t chunk[kTiles][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) load_matrices(from[i] + at.pixel, chunk[i]);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int n = 0; n < kPieces; ++n) {
          multiply_operands<T>(accumulators + index_accumulator(i, n), chunk[i], words[2 * n],
                               words[2 * n + 1]);
        }
      }
    }
  }

  // Pixel (from the warp's first) and filter (from the chunk's first) of accumulator j of an MMA.
  static __device__ __forceinline__ int pixel_of(int i, int j) {
    return 16 * i + threadIdx.x % 32 / 4 + 8 * (j / 2);
  }
  static __device__ __forceinline__ int filter_of(int n, int j) {
    return find_chunk_filter<kPieces>(n, threadIdx.x % 4 * 2 + j % 2);
  }

  // Computes one output tap by tap, without the channels of other groups.
  __device__ __forceinline__ float add_taps(int pixel, int filter) const {
    if (filter >= p.targets) return 0;
    const int group_channel = filter / p.target_channels * p.source_channels;
    const uint32_t from =
        find_pixel(locate(pixel)) + kElement * (group_channel - sources.first_channel);
    const T* const weights_of_filter = find_weights<T>(p, group_channel, filter);
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < row.taps * column.taps; ++i) {
      const uint32_t at = from + steps[i].pixel;
      const int tap = static_cast<int>(steps[i].weight) / (p.chunks * 32 * 4 * kWords);
      const int r = tap / p.kernel_width;
      const T* const weight =
          weights_of_filter + r * p.weight_r + (tap - r * p.kernel_width) * p.weight_s;
#pragma unroll 1
      for (int c = 0; c < p.source_channels; ++c) {
        sum += to_accumulate(load_element<T>(at + kElement * c)) *
               to_accumulate(round_operand(weight[c * p.weight_source]));
      }
    }
    return sum;
  }

  __device__ __forceinline__ void recompute_nan(Accumulators& accumulators) const {
    recompute_nans(accumulators, [&](int i) {
      return add_taps(pixel_of(i / (4 * kPieces), i % 4),
                      first_filter + filter_of(i / 4 % kPieces, i % 4));
    });
  }

  // Stores 8 or 16 bytes.
  static __device__ __forceinline__ void store_vector(T* target,
                                                      const float (&results)[kLaneFilters]) {
    if constexpr (kElement == 4 && kPieces == 2) {
      convx::store_vector(target, results);
    } else if constexpr (kElement == 4) {
      *reinterpret_cast<float2*>(target) = make_float2(results[0], results[1]);
    } else {
      *reinterpret_cast<uint2*>(target) = uint2{narrow(results, 0, T{}), narrow(results, 2, T{})};
    }
  }

  __device__ __forceinline__ void store(const Accumulators& accumulators) const {
    const int filter = first_filter + filter_of(0, 0);
    if (filter >= p.targets) return;
    const int top = row.target_start + tile.first_row * p.row.target_step;
    const int left = column.target_start + tile.first_column * p.column.target_step;
    T* const first_target = static_cast<T*>(p.target) + tile.image * p.target_n +
                            int64_t{top} * p.target_h + int64_t{left} * p.target_w + filter;
    const int down = p.row.target_step * p.target_h;
    const int right = p.column.target_step * p.target_w;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Place at = locate(pixel_of(i, 2 * half));
        if (!exists(at)) continue;
        T* target = first_target + (at.row * down + at.column * right);
        float results[kLaneFilters];
#pragma unroll
        for (int k = 0; k < kLaneFilters; ++k) {
          results[k] = accumulators[index_accumulator(i, k / 2) + 2 * half + k % 2] +
                       bias[filter_of(0, 0) + k];
        }
        if (p.vectors) {
          store_vector(target, results);
        } else {
#pragma unroll
          for (int k = 0; k < kLaneFilters; ++k) {
            if (filter + k < p.targets) target[k] = round_to<T>(results[k]);
          }
        }
      }
    }
  }
};

template <typename T, int kPieces, int kPixels>
__device__ __forceinline__ void compute_diagonals(const DiagonalParams& p,
                                                  unsigned char* shared_bytes) {
  using Job = DiagonalJob<T, kPieces, kPixels>;
  const int set = static_cast<int>(blockIdx.x) % p.sets;
  const int set_filter = set * p.chunks * Job::kFilters;
  const int first_channel = locate_chunk_sources<T, kPieces>(p, set_filter).first_channel;
  const auto stage_of = [&](int slot) {
    return shared_bytes + p.pixels_offset + slot * p.stage_bytes;
  };
  const int tiles = p.images * p.row_tiles * p.column_tiles;
  const int step = static_cast<int>(gridDim.x) / p.sets;
  DiagonalStep* const steps = reinterpret_cast<DiagonalStep*>(shared_bytes + p.steps_offset);
  float* const bias = reinterpret_cast<float*>(shared_bytes + p.bias_offset);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int chunk = warp % p.chunks;
  const int first_filter = set_filter + chunk * Job::kFilters;
  const DiagonalSources sources = locate_chunk_sources<T, kPieces>(p, first_filter);
  const int tile_pixels = p.tile_rows * p.tile_columns;
  // The first iteration starts the copies of the block's first tile and stages the weights.
  int slot = 1;
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x) / p.sets - step; index < tiles; index += step) {
    const int next = index + step;
    if (next < tiles) {
      stage_pixels<T>(p, locate_diagonal_tile(p, next), first_channel, stage_of(1 - slot));
    }
    commit_copies();
    slot = 1 - slot;
    if (index < 0) {
      stage_steps<kPieces>(p, steps);
      stage_bias<T, kPieces>(p, set_filter, bias);
      stage_diagonals<T, kPieces>(p, set_filter, shared_bytes);
      continue;
    }
    const DiagonalTile tile = locate_diagonal_tile(p, index);
    wait_copies<1>();
    round_pixels<T>(p, tile, first_channel, stage_of(1 - slot));
    __syncthreads();  // the weights and every thread's copies for this tile have landed
    int first = warp / p.chunks * kPixels;
    const DiagonalStep* phase_steps = steps;
#pragma unroll 1
    for (int phase = 0; phase < p.row.phases * p.column.phases; ++phase) {
      const int row_phase = phase / p.column.phases;
      const DiagonalPhase& row = p.row.phase[row_phase];
      const DiagonalPhase& column = p.column.phase[phase - row_phase * p.column.phases];
#pragma unroll 1
      for (; first < tile_pixels; first += kDiagonalWarps / p.chunks * kPixels) {
        const Job job{p,
                      tile,
                      row,
                      column,
                      phase_steps,
                      bias + chunk * Job::kFilters,
                      shared_address(shared_bytes) + chunk * (32 * 4 * Job::kWords),
                      shared_address(stage_of(1 - slot)) +
                          (sources.first_channel - first_channel) * Job::kElement,
                      first_filter,
                      sources,
                      first};
        typename Job::Accumulators accumulators;
        job.multiply(accumulators);
        job.recompute_nan(accumulators);
        job.store(accumulators);
      }
      phase_steps += row.taps * column.taps * p.depth;
      first -= (tile_pixels + kPixels - 1) / kPixels * kPixels;
    }
    __syncthreads();  // all warps have read the stage
  }
}

template <typename T, int kPieces, int kPixels>
__global__ void __launch_bounds__(kDiagonalThreads, kDiagonalBlocks)
    diagonal_kernel(const __grid_constant__ DiagonalParams p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  compute_diagonals<T, kPieces, kPixels>(p, shared_bytes);
#endif
}

void launch_cuda_diagonal(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const DiagonalFit& fit = geometry_of<DiagonalFit>(plan);
  const DiagonalParams params = make_diagonal_params(*site.problem, fit, buffers);
  visit_mma_type(site.problem->dtype, [&](auto element) {
    using T = decltype(element);
    launch_listed<kDiagonalKernels>(site, fit.kernel, [&]<DiagonalKernel kKernel>() {
      if constexpr (sizeof(T) == 4 || kKernel.pieces == 2) {
        launch_kernel<diagonal_kernel<T, kKernel.pieces, kKernel.warp_pixels>>(
            site, fit.blocks, kDiagonalThreads, fit.shared_bytes, params);
      }
    });
  });
}

}  // namespace convx
