// What the kernel of cuda_diagonal is told. Plain data: filled on the host, read from constant
// memory.
//
// A pixel's channels lie together, and 32 bytes of them, a chunk, hold whole groups. With zeros
// where channel and filter are of different groups a chunk's weights are a block-diagonal matrix:
//
//     16 pixels [pixel][channel of the chunk]  x  [channel][filter of the chunk],  for each tap.
//
// Shared memory: weights [tap][chunk][lane][words], in the order of a product's operand; two stages
// of pixels [row][column][pixel_bytes], zeros for padding.
#pragma once

#include <cstdint>

#include "device/fast_divmod.cuh"
#include "engines/cuda_axis.h"

namespace convx {

constexpr int kChunkBytes = 32;
constexpr int kDiagonalWarps = 8;
constexpr int kDiagonalThreads = 32 * kDiagonalWarps;
constexpr int kDiagonalBlocks = 3;      // on a multiprocessor, by registers
constexpr int kDiagonalMostChunks = 4;  // of a block
constexpr int kDiagonalPixels = 64;     // of a warp at a time: four products below each other

// Channels of a chunk, and filters: 16 of 16 bits, 8 of TF32.
constexpr int count_chunk_channels(int64_t element_bytes) {
  return static_cast<int>(kChunkBytes / element_bytes);
}
// Words of weights that a lane has of a tap and a chunk.
constexpr int count_chunk_words(int64_t element_bytes) { return element_bytes == 2 ? 4 : 2; }

struct DiagonalParams {
  const void* source;
  const void* weight;
  const void* bias;  // may be null
  void* target;
  int64_t source_n, target_n;
  int source_h, source_w, target_h, target_w;  // channels are neighbours
  int64_t weight_group, weight_target, weight_source, weight_r, weight_s;
  int images, channels;  // of the source and of the target alike
  int group_channels;
  int source_height, source_width;
  CudaAxis row, column;  // every tap a class of its own

  int chunks, sets;  // of a block, and such sets of channels
  int tile_rows, tile_columns;
  int row_tiles, column_tiles;
  int staged_rows, staged_columns;
  int pixel_bytes, pixels_offset, stage_bytes;
  int unit;                                                 // channels that are copied at once
  bool vectors;                                             // a lane's results are stored at once
  FastDivmod by_tile_columns, by_staged_columns, by_units;  // units of a pixel
};

}  // namespace convx
