// Stages the weights and the pixels of cuda_diagonal in shared memory.
#pragma once

#include "device/cp_async.cuh"
#include "engines/cuda/grouped/diagonal_geometry.h"
#include "kernels/tensor_types.cuh"

namespace convx {

// A tile of lattice points of one image. Every phase has outputs at these points.
struct DiagonalTile {
  int image;
  int first_row, first_column;
};

__device__ __forceinline__ DiagonalTile locate_diagonal_tile(const DiagonalParams& p, int index) {
  DiagonalTile tile;
  tile.first_column = index % p.column_tiles * p.tile_columns;
  index /= p.column_tiles;
  tile.first_row = index % p.row_tiles * p.tile_rows;
  tile.image = index / p.row_tiles;
  return tile;
}

// The filter of a chunk that column n of piece `piece` (8 columns) computes. A lane holds columns
// 2t and 2t + 1 of every piece. The filters of two pieces are permuted so that these are four
// neighbours.
template <int kPieces>
__device__ __forceinline__ int find_chunk_filter(int piece, int n) {
  return kPieces == 2 ? 4 * (n / 2) + 2 * piece + n % 2 : n;
}

// The source channels that a chunk of filters reads: whole chunks from first_channel on.
struct DiagonalSources {
  int first_channel, depth;
};
template <typename T, int kPieces>
__device__ __forceinline__ DiagonalSources locate_chunk_sources(const DiagonalParams& p,
                                                                int first_filter) {
  constexpr int kChannels = count_chunk_channels(sizeof(T));
  if (first_filter >= p.targets) return {0, 0};
  const int last_filter = min(first_filter + count_chunk_filters(kPieces), p.targets) - 1;
  const int first = first_filter / p.target_channels * p.source_channels / kChannels;
  const int last = ((last_filter / p.target_channels + 1) * p.source_channels - 1) / kChannels;
  return {first * kChannels, last + 1 - first};
}

// The weights of a source channel and a filter at kernel position 0. Null if the weight is zero
// because the two belong to different groups or one of them does not exist.
template <typename T>
__device__ __forceinline__ const T* find_weights(const DiagonalParams& p, int channel, int filter) {
  const int group = filter / p.target_channels;
  const int group_channel = channel - group * p.source_channels;
  if (filter >= p.targets || group_channel < 0 || group_channel >= p.source_channels)
    return nullptr;
  return static_cast<const T*>(p.weight) + group * p.weight_group +
         (filter - group * p.target_channels) * p.weight_target + group_channel * p.weight_source;
}

// Writes the B operands of all MMAs, [source chunk][tap][filter chunk][lane][piece][word]
// (device/mma.cuh). A thread handles the same word of every tap, so that it finds the addresses of
// its weights only once. Neither loads nor stores have branches, or the compiler would move each
// load to its store: a batch of loads is in flight at a time. Places behind the last tap repeat it.
template <typename T, int kPieces>
__device__ __forceinline__ void stage_diagonals(const DiagonalParams& p, int first_filter,
                                                unsigned char* shared) {
  constexpr int kChannels = count_chunk_channels(sizeof(T));
  constexpr int kWords = count_chunk_words(kPieces);
  constexpr int kOfWord = 4 / static_cast<int>(sizeof(T));
  const int count = p.chunks * 32 * kWords;  // words of a tap: a power of two
  const int threads = min(count, kDiagonalThreads);
  const int tap_step = kDiagonalThreads / threads;
  const int taps = p.kernel_height * p.kernel_width;
#pragma unroll 1
  for (int index = static_cast<int>(threadIdx.x) % threads; index < count; index += threads) {
    const int word = index % kWords;
    const int lane = index / kWords % 32;
    const int chunk_filter = first_filter + index / (kWords * 32) * count_chunk_filters(kPieces);
    const DiagonalSources sources = locate_chunk_sources<T, kPieces>(p, chunk_filter);
    const int filter = chunk_filter + find_chunk_filter<kPieces>(word / 2, lane / 4);
#pragma unroll 1
    for (int d = 0; d < sources.depth; ++d) {
      const int channel =
          sources.first_channel + d * kChannels + kOfWord * (lane % 4 + word % 2 * 4);
      const T* from[kOfWord];
#pragma unroll
      for (int i = 0; i < kOfWord; ++i) from[i] = find_weights<T>(p, channel + i, filter);
      uint32_t* const to = reinterpret_cast<uint32_t*>(shared) + d * taps * count + index;
#pragma unroll 1
      for (int first = static_cast<int>(threadIdx.x) / threads; first < taps;
           first += kDiagonalTapBatch * tap_step) {
        T values[kDiagonalTapBatch][kOfWord];
#pragma unroll
        for (int b = 0; b < kDiagonalTapBatch; ++b) {
          int r = min(first + b * tap_step, taps - 1);
          const int s = p.by_kernel_width.split(r);
          const int64_t offset = r * p.weight_r + s * p.weight_s;
#pragma unroll
          for (int i = 0; i < kOfWord; ++i) {
            values[b][i] =
                __ldg(from[i] == nullptr ? static_cast<const T*>(p.weight) : from[i] + offset);
          }
        }
#pragma unroll
        for (int b = 0; b < kDiagonalTapBatch; ++b) {
#pragma unroll
          for (int i = 0; i < kOfWord; ++i) {
            values[b][i] = from[i] == nullptr ? round_to<T>(0.0f) : round_operand(values[b][i]);
          }
          memcpy(to + min(first + b * tap_step, taps - 1) * count, values[b], 4);
        }
      }
    }
  }
}

// Writes the steps of all phases. Each warp takes some of the phases.
template <int kPieces>
__device__ __forceinline__ void stage_steps(const DiagonalParams& p, DiagonalStep* steps) {
  const uint32_t tap_bytes = p.chunks * 32 * 4 * count_chunk_words(kPieces);
  const int lane = threadIdx.x % 32;
  int wait = static_cast<int>(threadIdx.x) / 32;  // phases until the warp's next one
#pragma unroll 1
  for (int i = 0; i < p.row.phases; ++i) {
    const DiagonalPhase& row = p.row.phase[i];
#pragma unroll 1
    for (int j = 0; j < p.column.phases; ++j) {
      const DiagonalPhase& column = p.column.phase[j];
      const int taps = row.taps * column.taps;
      const int count = wait == 0 ? taps * p.depth : 0;
#pragma unroll 1
      for (int step = lane; step < count; step += 32) {
        const int d = step / taps;
        const int r = (step - d * taps) / column.taps;
        const int s = step - d * taps - r * column.taps;
        const int residues = s * column.residue_step;
        const int wraps = residues / p.column.residues;
        const int right = column.first + s * column.step + wraps +
                          (residues - wraps * p.column.residues) * p.residue_columns;
        const int down = row.first + r * row.step;
        const int kernel_row = d * p.kernel_height + row.tap0 + r * row.tap_step;
        const int kernel_column = column.tap0 + s * column.tap_step;
        steps[step] = {static_cast<uint32_t>((down * p.staged_columns + right) * p.pixel_bytes +
                                             d * kChunkBytes),
                       (kernel_row * p.kernel_width + kernel_column) * tap_bytes};
      }
      steps += taps * p.depth;
      wait = wait == 0 ? kDiagonalWarps - 1 : wait - 1;
    }
  }
}

// Stages the bias of the block's filters, or zeros.
template <typename T, int kPieces>
__device__ __forceinline__ void stage_bias(const DiagonalParams& p, int first_filter, float* bias) {
  const int index = threadIdx.x;
  if (index >= p.chunks * count_chunk_filters(kPieces)) return;
  bias[index] = p.bias != nullptr && first_filter + index < p.targets
                    ? to_accumulate(static_cast<const T*>(p.bias)[first_filter + index])
                    : 0.0f;
}

// Calls visit<unit>(global address, staged address, inside the image) for every unit of the tile's
// pixels that the calling thread owns. A thread keeps a unit of the row and goes down the rows, so
// it locates columns and channels only once. The assignment is fixed, so a thread always sees the
// units that it copied.
template <typename T, typename Visit>
__device__ __forceinline__ void visit_pixels(const DiagonalParams& p, const DiagonalTile& tile,
                                             int first_channel, unsigned char* pixels,
                                             const Visit& visit) {
  visit_unit<T>(p.unit, [&](auto unit_constant) {
    constexpr int kUnit = decltype(unit_constant)::value;
    const int row_units = static_cast<int>(p.by_row_units.divisor);
    const int top = tile.first_row * p.row.source_step + p.row.origin;
    const int left = tile.first_column * p.column.source_step + p.column.origin;
    int line = threadIdx.x;
    int unit = p.by_row_units.split(line);
    if (line >= p.lines_per_pass) return;
    const int64_t step = int64_t{p.lines_per_pass} * p.row.gap * p.source_h;
    const T* const source = static_cast<const T*>(p.source);
#pragma unroll 1
    for (; unit < row_units; unit += kDiagonalThreads) {
      int pixel = unit;
      const int channel = p.by_units.split(pixel) * kUnit;
      int residue = pixel;
      const int position = p.by_residue_columns.split(residue);
      const int column = left + residue + position * p.column.gap;
      const bool in_columns =
          static_cast<unsigned>(column) < static_cast<unsigned>(p.source_width) &&
          first_channel + channel < p.sources;
      int row = top + line * p.row.gap;
      const T* from = source + (tile.image * p.source_n + int64_t{row} * p.source_h +
                                int64_t{column} * p.source_w + first_channel + channel);
      unsigned char* to = pixels + (line * p.staged_columns + pixel) * p.pixel_bytes +
                          channel * static_cast<int>(sizeof(T));
#pragma unroll 4
      for (int left_rows = p.staged_rows - line; left_rows > 0; left_rows -= p.lines_per_pass) {
        const bool inside =
            in_columns && static_cast<unsigned>(row) < static_cast<unsigned>(p.source_height);
        visit.template operator()<kUnit>(inside ? from : source, reinterpret_cast<T*>(to), inside);
        row += p.lines_per_pass * p.row.gap;
        from += step;
        to += p.lines_per_pass * p.staged_columns * p.pixel_bytes;
      }
    }
  });
}

// Issues the copies of a tile's pixels.
template <typename T>
__device__ __forceinline__ void stage_pixels(const DiagonalParams& p, const DiagonalTile& tile,
                                             int first_channel, unsigned char* pixels) {
  visit_pixels<T>(p, tile, first_channel, pixels, []<int kUnit>(const T* from, T* to, bool inside) {
    copy_unit<kUnit>(to, from, inside);
  });
}

// Rounds staged float32 values to TF32. Each thread rounds the units that it copied, so waiting for
// its own copies is enough.
template <typename T>
__device__ __forceinline__ void round_pixels(const DiagonalParams& p, const DiagonalTile& tile,
                                             int first_channel, unsigned char* pixels) {
  if constexpr (sizeof(T) == 4) {
    visit_pixels<T>(p, tile, first_channel, pixels,
                    []<int kUnit>(const T*, T* to, bool) { round_unit<kUnit>(to); });
  }
}

}  // namespace convx
