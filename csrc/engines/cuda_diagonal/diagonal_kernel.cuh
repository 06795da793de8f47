// Grouped convolution with few channels per group on tensor cores: channels_last, TF32 and 16 bits,
// from sm_80 on.
//
//     y[pixel][k] = bias[k] + sum over taps of  x[pixel under the tap][chunk] * W_tap[chunk][k]
//
//     pixels in shared memory          one MMA, for one tap
//     [row][column][32 bytes, ...]     A: 16 pixels x the 32 bytes of a chunk
//      x x x x x x x x                 B: the channels of the chunk x 8 filters
//      x x x x x x x x
//              filters
//          w w 0 0 0 0 ...             A chunk holds whole groups. Weights are zero where channel
//     c    w w 0 0 0 0 ...             and filter belong to different groups. With 16 channels in
//          0 0 w w 0 0 ...             groups of four, a quarter of the MMA work is useful, and
//          0 0 w w 0 0 ...             memory still takes longer.
//
// Tile: a block has up to four chunks of channels, whose weights stay in shared memory, and
// iterates over tiles of pixels. The copies of the next tile (cp.async, two stages) overlap with
// the MMAs of the current one; see diagonal_stage.cuh.
//
// Warps: 8, all with the same role. A warp computes one chunk of 64 pixels at a time. For each tap
// it reads their 32 bytes (ldmatrix) and the lane's words of weights.
//
// Stores: a lane holds four neighbouring filters of a pixel (two in TF32), which are 8 bytes, and a
// quad of lanes stores a whole sector.
//
// Non-finite values: a zero weight times an infinity is NaN, which the definition does not have.
// Accumulators that became NaN are recomputed tap by tap.
//
// Shared memory: the weights, then two stages of pixels (diagonal_params.h has the extents).
// Limit: reading the A operand, one ldmatrix (four wavefronts) per tap, 16 pixels and chunk
// (docs/engines/cuda_diagonal.md).
// Grid: sets of chunks fastest.
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda_diagonal/diagonal_stage.cuh"
#include "engines/mend_sums.cuh"

namespace convx {

template <typename T>
struct DiagonalJob {
  static constexpr int kElement = sizeof(T);
  static constexpr int kChannels = count_chunk_channels(sizeof(T));
  static constexpr int kPieces = kChannels / 8;
  static constexpr int kWords = count_chunk_words(sizeof(T));
  static constexpr int kTiles = kDiagonalPixels / 16;  // MMAs of 16 pixels
  static constexpr int kLaneFilters = 2 * kPieces;
  using Sums = float[kTiles * kPieces * 4];

  // Index of an MMA's first accumulator.
  static constexpr int index_sums(int i, int n) { return (i * kPieces + n) * 4; }

  const DiagonalParams& p;
  const DiagonalTile& tile;
  uint32_t weights, pixels;  // addresses of the chunk in shared memory
  int first_filter;          // first filter of the chunk
  int first;                 // first pixel of the warp, counted in the tile

  struct Place {
    int row, column;
  };
  __device__ __forceinline__ Place locate(int pixel) const {
    int row = first + pixel;
    const int column = p.by_tile_columns.split(row);
    return {row, column};
  }
  __device__ __forceinline__ bool exists(const Place& at) const {
    return at.row < tile.rows && at.column < tile.columns;
  }
  // Address of the pixel's chunk under the first tap. Pixels below the tile read its first row.
  __device__ __forceinline__ uint32_t find_pixel(const Place& at) const {
    const int row = at.row < p.tile_rows ? at.row : 0;
    return pixels +
           (row * p.row.source_step * p.staged_columns + at.column * p.column.source_step) *
               p.pixel_bytes;
  }

  __device__ __forceinline__ void multiply(Sums& sums) const {
    const int lane = threadIdx.x % 32;
    uint32_t from[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      from[i] = find_pixel(locate(16 * i + lane % 16)) + lane / 16 * 16;
    }
#pragma unroll
    for (float& sum : sums) sum = 0;
    uint32_t words_at = weights + lane * (4 * kWords);
    uint32_t row = 0;
#pragma unroll 1
    for (int r = 0; r < p.row.taps; ++r) {
      uint32_t offset = row;
#pragma unroll 2
      for (int s = 0; s < p.column.taps; ++s) {
        uint32_t words[kWords];
        if constexpr (kWords == 4) {
          load_16_bytes(words_at, words);
        } else {
          load_8_bytes(words_at, words);
        }
        uint32_t chunk[kTiles][4];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) load_matrices(from[i] + offset, chunk[i]);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int n = 0; n < kPieces; ++n) {
            multiply_operands<T>(sums + index_sums(i, n), chunk[i], words[2 * n], words[2 * n + 1]);
          }
        }
        words_at += p.chunks * 32 * 4 * kWords;
        offset += p.column.offset_step * p.pixel_bytes;
      }
      row += p.row.offset_step * p.staged_columns * p.pixel_bytes;
    }
  }

  // Pixel (from the warp's first) and filter (from the chunk's first) of accumulator j of an MMA.
  static __device__ __forceinline__ int pixel_of(int i, int j) {
    return 16 * i + threadIdx.x % 32 / 4 + 8 * (j / 2);
  }
  static __device__ __forceinline__ int filter_of(int n, int j) {
    return find_chunk_filter<T>(n, threadIdx.x % 4 * 2 + j % 2);
  }

  // Computes one output tap by tap, without the channels of other groups.
  __device__ __forceinline__ float add_taps(int pixel, int filter) const {
    const int group = filter / p.group_channels * p.group_channels;
    const uint32_t from = find_pixel(locate(pixel)) + kElement * group;
    float sum = 0;
#pragma unroll 1
    for (int tap = 0; tap < p.row.taps * p.column.taps; ++tap) {
      const int r = tap / p.column.taps, s = tap - r * p.column.taps;
      const uint32_t at =
          from +
          (r * p.row.offset_step * p.staged_columns + s * p.column.offset_step) * p.pixel_bytes;
#pragma unroll 1
      for (int c = 0; c < p.group_channels; ++c) {
        const T weight =
            load_chunk_weight<T>(p, find_chunk_taps<T>(p, first_filter, group + c, filter), r, s);
        sum += to_accumulate(load_element<T>(at + kElement * c)) * to_accumulate(weight);
      }
    }
    return sum;
  }

  __device__ __forceinline__ void mend(Sums& sums) const {
    mend_sums(sums, [&](int i) {
      return add_taps(pixel_of(i / (4 * kPieces), i % 4), filter_of(i / 4 % kPieces, i % 4));
    });
  }

  // Stores 8 bytes.
  static __device__ __forceinline__ void store_vector(T* target,
                                                      const float (&results)[kLaneFilters]) {
    if constexpr (kElement == 4) {
      *reinterpret_cast<float2*>(target) = make_float2(results[0], results[1]);
    } else {
      *reinterpret_cast<uint2*>(target) = uint2{narrow(results, 0, T{}), narrow(results, 2, T{})};
    }
  }

  __device__ __forceinline__ void store(const Sums& sums, const float (&bias)[kLaneFilters]) const {
    const int filter = first_filter + filter_of(0, 0);
    if (filter >= p.channels) return;
    T* const first_target = static_cast<T*>(p.target) + tile.image * p.target_n +
                            int64_t{tile.first_row} * p.target_h +
                            int64_t{tile.first_column} * p.target_w + filter;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Place at = locate(pixel_of(i, 2 * half));
        if (!exists(at)) continue;
        T* target = first_target + (at.row * p.target_h + at.column * p.target_w);
        float results[kLaneFilters];
#pragma unroll
        for (int k = 0; k < kLaneFilters; ++k) {
          results[k] = sums[index_sums(i, k / 2) + 2 * half + k % 2] + bias[k];
        }
        if (p.vectors) {
          store_vector(target, results);
        } else {
#pragma unroll
          for (int k = 0; k < kLaneFilters; ++k) {
            if (filter + k < p.channels) target[k] = round_to<T>(results[k]);
          }
        }
      }
    }
  }
};

template <typename T>
__device__ __forceinline__ void compute_diagonals(const DiagonalParams& p,
                                                  unsigned char* shared_bytes) {
  using Job = DiagonalJob<T>;
  const int set = static_cast<int>(blockIdx.x) % p.sets;
  const int first_channel = set * p.chunks * Job::kChannels;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int chunk = warp % p.chunks;
  const int first_filter = first_channel + chunk * Job::kChannels;
  float bias[Job::kLaneFilters];
#pragma unroll
  for (int k = 0; k < Job::kLaneFilters; ++k) {
    const int filter = first_filter + Job::filter_of(0, 0) + k;
    bias[k] = p.bias != nullptr && filter < p.channels
                  ? to_accumulate(static_cast<const T*>(p.bias)[filter])
                  : 0.0f;
  }
  const auto stage_of = [&](int turn) {
    return shared_bytes + p.pixels_offset + turn * p.stage_bytes;
  };
  stage_diagonals<T>(p, first_channel, shared_bytes);
  const int tiles = p.images * p.row_tiles * p.column_tiles;
  const int step = static_cast<int>(gridDim.x) / p.sets;
  const int tile_pixels = p.tile_rows * p.tile_columns;
  // The first iteration only starts copies: the tile before the block's first does not exist.
  int turn = 1;
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x) / p.sets - step; index < tiles; index += step) {
    const int next = index + step;
    if (next < tiles) {
      stage_pixels<T>(p, locate_diagonal_tile(p, next), first_channel, stage_of(1 - turn));
    }
    commit_copies();
    if (index >= 0) {
      const DiagonalTile tile = locate_diagonal_tile(p, index);
      wait_copies<1>();
      round_pixels<T>(p, tile, first_channel, stage_of(turn));
      __syncthreads();  // every thread's copies for this tile have landed
#pragma unroll 1
      for (int first = warp / p.chunks * kDiagonalPixels; first < tile_pixels;
           first += kDiagonalWarps / p.chunks * kDiagonalPixels) {
        const Job job{p,
                      tile,
                      shared_address(shared_bytes) + chunk * (32 * 4 * Job::kWords),
                      shared_address(stage_of(turn)) + chunk * kChunkBytes,
                      first_filter,
                      first};
        typename Job::Sums sums;
        job.multiply(sums);
        job.mend(sums);
        job.store(sums, bias);
      }
      __syncthreads();  // all warps have read the stage
    }
    turn = 1 - turn;
  }
}

template <typename T>
__global__ void __launch_bounds__(kDiagonalThreads, kDiagonalBlocks)
    diagonal_kernel(const __grid_constant__ DiagonalParams p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  compute_diagonals<T>(p, shared_bytes);
#endif
}

}  // namespace convx
