// Stages the weights and the pixels of cuda_diagonal in shared memory.
#pragma once

#include "engines/copy_unit.cuh"
#include "engines/cuda_diagonal/diagonal_params.h"
#include "engines/mma_operand.cuh"

namespace convx {

// A tile of output pixels of one image.
struct DiagonalTile {
  int image;
  int first_row, first_column;  // of the output
  int rows, columns;
};

__device__ __forceinline__ DiagonalTile locate_diagonal_tile(const DiagonalParams& p, int index) {
  DiagonalTile tile;
  tile.first_column = index % p.column_tiles * p.tile_columns;
  index /= p.column_tiles;
  tile.first_row = index % p.row_tiles * p.tile_rows;
  tile.image = index / p.row_tiles;
  tile.rows = min(p.tile_rows, p.row.count - tile.first_row);
  tile.columns = min(p.tile_columns, p.column.count - tile.first_column);
  return tile;
}

// The filter of a chunk that column n of piece `piece` (8 columns) computes. A lane holds columns
// 2t and 2t + 1 of every piece. In 16 bits the filters are permuted so that these are four
// neighbours.
template <typename T>
__device__ __forceinline__ int find_chunk_filter(int piece, int n) {
  return sizeof(T) == 2 ? 4 * (n / 2) + 2 * piece + n % 2 : n;
}

// The first tap of a source channel and a filter, both counted from the chunk's first. Null if the
// weight is zero because they belong to different groups or the channel does not exist.
template <typename T>
__device__ __forceinline__ const T* find_chunk_taps(const DiagonalParams& p, int first_channel,
                                                    int channel, int filter) {
  const int group = channel / p.group_channels;
  if (filter / p.group_channels != group || first_channel + channel >= p.channels) return nullptr;
  return static_cast<const T*>(p.weight) +
         (first_channel / p.group_channels + group) * p.weight_group +
         (filter - group * p.group_channels) * p.weight_target +
         (channel - group * p.group_channels) * p.weight_source + p.row.tap0 * p.weight_r +
         p.column.tap0 * p.weight_s;
}
template <typename T>
__device__ __forceinline__ T load_chunk_weight(const DiagonalParams& p, const T* taps, int r,
                                               int s) {
  return taps == nullptr
             ? round_to<T>(0.0f)
             : round_operand(
                   taps[r * p.row.tap_step * p.weight_r + s * p.column.tap_step * p.weight_s]);
}

// Writes the B operands of all MMAs, [tap][chunk][lane][piece][word] (device/mma.cuh). A thread
// handles the same word of every tap, so that it finds the addresses of its weights only once.
template <typename T>
__device__ __forceinline__ void stage_diagonals(const DiagonalParams& p, int first_channel,
                                                unsigned char* shared) {
  constexpr int kWords = count_chunk_words(sizeof(T));
  constexpr int kOfWord = 4 / static_cast<int>(sizeof(T));
  const int count = p.chunks * 32 * kWords;  // words of a tap: a power of two
  const int threads = min(count, kDiagonalThreads);
  const int first_tap = static_cast<int>(threadIdx.x) / threads;
  for (int index = static_cast<int>(threadIdx.x) % threads; index < count; index += threads) {
    const int word = index % kWords;
    const int lane = index / kWords % 32;
    const int chunk_channel =
        first_channel + index / (kWords * 32) * count_chunk_channels(sizeof(T));
    const int filter = find_chunk_filter<T>(word / 2, lane / 4);
    const T* taps[kOfWord];
#pragma unroll
    for (int i = 0; i < kOfWord; ++i) {
      taps[i] =
          find_chunk_taps<T>(p, chunk_channel, kOfWord * (lane % 4 + word % 2 * 4) + i, filter);
    }
    int r = 0, s = first_tap;
#pragma unroll 4
    for (int tap = first_tap; tap < p.row.taps * p.column.taps; tap += kDiagonalThreads / threads) {
      for (; s >= p.column.taps; s -= p.column.taps) ++r;
      T values[kOfWord];
#pragma unroll
      for (int i = 0; i < kOfWord; ++i) values[i] = load_chunk_weight<T>(p, taps[i], r, s);
      memcpy(shared + (tap * count + index) * 4, values, 4);
      s += kDiagonalThreads / threads;
    }
  }
}

// Calls visit(global address, staged address, inside the image) for every unit of the tile's pixels
// that the calling thread owns. The assignment is fixed, so a thread always sees the units that it
// copied.
template <int kUnit, typename T, typename Visit>
__device__ __forceinline__ void visit_units(const DiagonalParams& p, const DiagonalTile& tile,
                                            int first_channel, unsigned char* pixels,
                                            const Visit& visit) {
  const int units = p.chunks * count_chunk_channels(sizeof(T)) / kUnit;
  const int count = p.staged_rows * p.staged_columns * units;
  const int top = tile.first_row * p.row.source_step + p.row.offset0;
  const int left = tile.first_column * p.column.source_step + p.column.offset0;
  const int64_t origin = tile.image * p.source_n + int64_t{top} * p.source_h +
                         int64_t{left} * p.source_w + first_channel;
#pragma unroll 4
  for (int index = threadIdx.x; index < count; index += kDiagonalThreads) {
    int pixel = index;
    const int channel = p.by_units.split(pixel) * kUnit;
    int row = pixel;
    const int column = p.by_staged_columns.split(row);
    const bool inside =
        static_cast<unsigned>(top + row) < static_cast<unsigned>(p.source_height) &&
        static_cast<unsigned>(left + column) < static_cast<unsigned>(p.source_width) &&
        first_channel + channel < p.channels;
    const int64_t at = origin + (row * p.source_h + column * p.source_w + channel);
    visit(static_cast<const T*>(p.source) + (inside ? at : 0),
          reinterpret_cast<T*>(pixels + pixel * p.pixel_bytes) + channel, inside);
  }
}

// Issues the copies of a tile's pixels.
template <typename T>
__device__ __forceinline__ void stage_pixels(const DiagonalParams& p, const DiagonalTile& tile,
                                             int first_channel, unsigned char* pixels) {
  visit_unit<T>(p.unit, [&](auto unit) {
    constexpr int kUnit = decltype(unit)::value;
    visit_units<kUnit, T>(p, tile, first_channel, pixels, [](const T* from, T* to, bool inside) {
      copy_unit<kUnit>(to, from, inside);
    });
  });
}

// Rounds staged float32 values to TF32. Each thread rounds the units that it copied, so waiting for
// its own copies is enough.
template <typename T>
__device__ __forceinline__ void round_pixels(const DiagonalParams& p, const DiagonalTile& tile,
                                             int first_channel, unsigned char* pixels) {
  if constexpr (sizeof(T) == 4) {
    visit_unit<T>(p.unit, [&](auto unit) {
      constexpr int kUnit = decltype(unit)::value;
      visit_units<kUnit, T>(p, tile, first_channel, pixels,
                            [](const T*, T* to, bool) { round_unit<kUnit>(to); });
    });
  }
}

}  // namespace convx
