// Parameters of the cuda_bands kernel. Plain data: filled on the host, read from constant memory.
//
// One row of taps is a band matrix. It maps the source columns that `depth` neighbouring outputs
// read to those outputs, where depth is the number of elements in 32 bytes:
//
//     outputs [depth]  =  source [steps * depth]  x  band [steps * depth][depth]
//     band [k][n]      =  tap k - n - lead of the row, or zero
//
// The tensor cores multiply 16 such rows, of any images, at once. Shared memory:
//
//     zeros     one line, read in place of rows outside the image
//     bands     [row of taps][copies][band_elements]: the taps, with zeros on both sides (and
//               between dilated taps). In 16 bits there are two copies, one element apart, so that
//               any two neighbours form an aligned word in one of them.
//     stages    [2][image][line][line_pitch]: source rows, with zeros for padding
#pragma once

#include <cstdint>

#include "planning/cuda_axis.h"

namespace convx {

constexpr int kBandBytes = 32;  // bytes of source columns in a step, and of outputs in a band
constexpr int kBandRows = 32;   // rows of a warp: two MMAs of 16 rows
constexpr int kBandMostWarps = 8;
// Registers that the compiler may use per thread, by the columns of the tile.
constexpr int count_band_registers(int columns) { return columns == 64 ? 112 : 80; }
// Zeros before the first tap. The first word of a band begins at most 15 elements before it, and
// lead is less than 16.
constexpr int kBandFront = 32;

// Columns of a step and outputs of a band: 16 in 16 bits, 8 in TF32.
constexpr int count_band_depth(int64_t element_bytes) {
  return static_cast<int>(kBandBytes / element_bytes);
}
constexpr int count_band_copies(int64_t element_bytes) { return element_bytes == 2 ? 2 : 1; }

struct BandsParams {
  const void* source;
  const void* weight;
  const void* bias;  // may be null
  void* target;
  int64_t source_n, source_c, source_h;
  int64_t target_n, target_c, target_h;
  int64_t weight_k, weight_r, weight_s;
  int images, multiplier;  // multiplier: filters per channel
  int source_height, source_width;
  CudaAxis row, column;  // each tap is its own class

  int warps;
  int tile_rows, tile_images;  // rows of an image, and images, in one pass of a block
  int row_tiles, column_tiles;
  int shares;  // number of blocks that divide the images of one tile
  int lead;    // columns staged before the first one that is read
  int groups;  // groups of steps in a band
  int span;    // staged lines of an image
  // Bytes, except band_elements.
  int line_pitch, band_elements, bands_offset, stages_offset, stage_bytes;
  int unit;    // elements per copy
  bool pairs;  // neighbouring outputs are stored in pairs, as one aligned vector
};

// Steps of source columns in a staged line.
constexpr int count_staged_steps(int tiles, int steps, int groups) {
  return tiles + steps * groups - 1;
}

}  // namespace convx
