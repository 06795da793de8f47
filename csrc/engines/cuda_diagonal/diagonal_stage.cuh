// Weights and pixels, brought into shared memory.
#pragma once

#include "engines/copy_unit.cuh"
#include "engines/cuda_diagonal/diagonal_params.h"
#include "engines/mma_operand.cuh"

namespace convx {

// What a block computes at a time: some pixels of an image.
struct DiagonalTile {
  int image;
  int first_row, first_column;  // of results
};

__device__ __forceinline__ DiagonalTile locate_diagonal_tile(const DiagonalParams& p, int index) {
  DiagonalTile tile;
  tile.first_column = index % p.column_tiles * p.tile_columns;
  index /= p.column_tiles;
  tile.first_row = index % p.row_tiles * p.tile_rows;
  tile.image = index / p.row_tiles;
  return tile;
}

// Which of a chunk's filters column n of a piece of 8 is. A lane has columns 2t and 2t + 1 of every
// piece, and so neighbouring filters.
template <typename T>
__device__ __forceinline__ int find_chunk_filter(int piece, int n) {
  return sizeof(T) == 2 ? 4 * (n / 2) + 2 * piece + n % 2 : n;
}

// A weight of a chunk, for the source channel and the filter, counted from its first; or zero.
template <typename T>
__device__ __forceinline__ T load_chunk_weight(const DiagonalParams& p, int first_channel, int tap,
                                               int channel, int filter) {
  const int group = channel / p.group_channels;
  T value = round_to<T>(0.0f);
  if (filter / p.group_channels == group && first_channel + channel < p.channels) {
    const int r = tap / p.column.taps, s = tap - r * p.column.taps;
    value = static_cast<const T*>(
        p.weight)[(first_channel / p.group_channels + group) * p.weight_group +
                  (filter - group * p.group_channels) * p.weight_target +
                  (channel - group * p.group_channels) * p.weight_source +
                  (p.row.tap0 + r * p.row.tap_step) * p.weight_r +
                  (p.column.tap0 + s * p.column.tap_step) * p.weight_s];
  }
  return round_operand(value);
}

// The second operand of all products, [tap][chunk][lane][piece][word] (device/mma.cuh).
template <typename T>
__device__ __forceinline__ void stage_diagonals(const DiagonalParams& p, int first_channel,
                                                unsigned char* shared) {
  constexpr int kWords = count_chunk_words(sizeof(T));
  constexpr int kOfWord = 4 / static_cast<int>(sizeof(T));
  const int count = p.row.taps * p.column.taps * p.chunks * 32 * kWords;
  for (int index = threadIdx.x; index < count; index += kDiagonalThreads) {
    const int word = index % kWords;
    const int lane = index / kWords % 32;
    const int chunk = index / (kWords * 32) % p.chunks;
    const int tap = index / (kWords * 32) / p.chunks;
    const int filter = find_chunk_filter<T>(word / 2, lane / 4);
    const int channel = kOfWord * (lane % 4 + word % 2 * 4);
    T values[kOfWord];
#pragma unroll
    for (int i = 0; i < kOfWord; ++i) {
      values[i] = load_chunk_weight<T>(p, first_channel + chunk * count_chunk_channels(sizeof(T)),
                                       tap, channel + i, filter);
    }
    memcpy(shared + index * 4, values, 4);
  }
}

// Calls visit with where each unit of a tile's pixels is read, where it is staged, and whether it
// lies within the image; every thread with its own.
template <int kUnit, typename T, typename Visit>
__device__ __forceinline__ void visit_units(const DiagonalParams& p, const DiagonalTile& tile,
                                            int first_channel, unsigned char* pixels,
                                            const Visit& visit) {
  const int units = p.chunks * count_chunk_channels(sizeof(T)) / kUnit;
  const int count = p.staged_rows * p.staged_columns * units;
  const int top = tile.first_row * p.row.source_step + p.row.offset0;
  const int left = tile.first_column * p.column.source_step + p.column.offset0;
#pragma unroll 4
  for (int index = threadIdx.x; index < count; index += kDiagonalThreads) {
    const int pixel = index / units;
    const int channel = (index - pixel * units) * kUnit;
    const int row = pixel / p.staged_columns;
    const int y = top + row, x = left + pixel - row * p.staged_columns;
    const bool inside = static_cast<unsigned>(y) < static_cast<unsigned>(p.source_height) &&
                        static_cast<unsigned>(x) < static_cast<unsigned>(p.source_width) &&
                        first_channel + channel < p.channels;
    const T* from = static_cast<const T*>(p.source);
    if (inside) {
      from += tile.image * p.source_n + y * p.source_h + x * p.source_w + first_channel + channel;
    }
    visit(from, reinterpret_cast<T*>(pixels + pixel * p.pixel_bytes) + channel, inside);
  }
}

// Copies a tile's pixels and waits for those of this thread.
template <typename T>
__device__ __forceinline__ void stage_pixels(const DiagonalParams& p, const DiagonalTile& tile,
                                             int first_channel, unsigned char* pixels) {
  visit_unit<T>(p.unit, [&](auto unit) {
    constexpr int kUnit = decltype(unit)::value;
    visit_units<kUnit, T>(p, tile, first_channel, pixels, [](const T* from, T* to, bool inside) {
      copy_unit<kUnit>(to, from, inside);
    });
    commit_copies();
    wait_copies<0>();
    if constexpr (sizeof(T) == 4) {
      visit_units<kUnit, T>(p, tile, first_channel, pixels, [](const T*, T* to, bool) {
#pragma unroll
        for (int i = 0; i < kUnit; ++i) to[i] = round_operand(to[i]);
      });
    }
  });
}

}  // namespace convx
