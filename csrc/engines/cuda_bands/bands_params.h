// What the kernel of cuda_bands is told. Plain data: filled on the host, read from constant memory.
//
// A row of taps is a band matrix: neighbouring results of a row, as many as 32 bytes have elements,
// are its product with the source columns that they see,
//
//     results [depth]  =  source [steps * depth]  x  band [steps * depth][depth],
//     band [k][n]      =  tap k - n - lead of the row, or zero,
//
// and 16 such rows, of any images, are products of tensor cores. Shared memory:
//
//     zeros     a line of them, for rows outside of an image
//     bands     [row of taps][copies][band_elements]: taps with zeros on both sides, and between
//               dilated ones; of 16 bits a second copy begins one element later, so that any two
//               neighbours are a word of either
//     stages    [2][image][line][line_pitch]: source rows, with zeros for padding
#pragma once

#include <cstdint>

#include "engines/cuda_axis.h"

namespace convx {

constexpr int kBandBytes = 32;  // of source columns, and of a band's results
constexpr int kBandRows = 32;   // of a warp: two products below each other
constexpr int kBandMostWarps = 8;
// Registers of a lane, by the columns that a warp has: what the compiler may use.
constexpr int count_band_registers(int columns) { return columns == 64 ? 112 : 80; }
// Zeros before the first tap: a word of the first band begins 15 elements before it at most, and
// lead is less than 16.
constexpr int kBandFront = 32;

// Columns of a step, and results of a band: 16 of 16 bits, 8 of TF32.
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
  int images, multiplier;  // filters of a channel: multiplier
  int source_height, source_width;
  CudaAxis row, column;  // every tap a class of its own

  int warps;
  int tile_rows, tile_images;  // what a block multiplies at a time
  int row_tiles, column_tiles;
  int shares;  // of the images: blocks for the same tile
  int lead;    // columns staged before the first that is seen
  int groups;  // of steps
  int span;    // lines of an image that are staged
  int line_pitch, band_elements, bands_offset, stages_offset, stage_bytes;  // bytes but elements
  int unit;    // elements that are copied at once
  bool pairs;  // results are stored by two
};

// Steps of source columns that are staged.
constexpr int count_staged_steps(int tiles, int steps, int groups) {
  return tiles + steps * groups - 1;
}

}  // namespace convx
