// Parameters of the cuda_diagonal kernel. Plain data: filled on the host, in constant memory.
//
// In channels_last, 32 bytes of a pixel's channels (a chunk) hold whole groups. With zeros where
// channel and filter belong to different groups, the weights of a chunk are a block-diagonal
// matrix:
//
//     [16 pixels][channel of the chunk]  x  [channel][filter of the chunk],  for each tap
//
// Shared memory:
//     weights   [tap][chunk][lane][words], in the order of the MMA's B operand
//     stages    [2][row][column][pixel_bytes]: source pixels, with zeros for padding
#pragma once

#include <cstdint>

#include "device/fast_divmod.cuh"
#include "engines/cuda_axis.h"

namespace convx {

constexpr int kChunkBytes = 32;
constexpr int kDiagonalWarps = 8;
constexpr int kDiagonalThreads = 32 * kDiagonalWarps;
constexpr int kDiagonalBlocks = 3;      // per multiprocessor, limited by registers
constexpr int kDiagonalMostChunks = 4;  // per block
constexpr int kDiagonalPixels = 64;     // pixels of a warp at once: four MMAs of 16 pixels

// Channels of a chunk, and its filters: 16 in 16 bits, 8 in TF32.
constexpr int count_chunk_channels(int64_t element_bytes) {
  return static_cast<int>(kChunkBytes / element_bytes);
}
// Words of weights that a lane reads per tap and chunk.
constexpr int count_chunk_words(int64_t element_bytes) { return element_bytes == 2 ? 4 : 2; }

struct DiagonalParams {
  const void* source;
  const void* weight;
  const void* bias;  // may be null
  void* target;
  int64_t source_n, target_n;
  int source_h, source_w, target_h, target_w;  // in elements; channels are contiguous
  int64_t weight_group, weight_target, weight_source, weight_r, weight_s;
  int images, channels;  // source and target have the same number of channels
  int group_channels;
  int source_height, source_width;
  CudaAxis row, column;  // each tap is its own class

  int chunks, sets;  // chunks of a block; number of such sets of chunks
  int tile_rows, tile_columns;
  int row_tiles, column_tiles;
  int staged_rows, staged_columns;
  int pixel_bytes, pixels_offset, stage_bytes;
  int unit;      // channels per copy
  bool vectors;  // a lane's outputs of a pixel are stored as one 8-byte vector
  FastDivmod by_tile_columns, by_staged_columns, by_units;  // by_units: copy units of a pixel
};

}  // namespace convx
