// Geometry of cuda_bands. The planner fills BandsParams, which are complete except for the buffers,
// and the kernel receives them in constant memory. Plain data and host code.
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
#include <span>

#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"
#include "planning/gather_axis.h"

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

struct BandsKernel {
  int steps;    // of a group
  int columns;  // of a block

  bool operator==(const BandsKernel&) const = default;
};
// The compiled kernels, for each of three types.
inline constexpr BandsKernel kBandsKernels[] = {{2, 16}, {2, 32}, {2, 64},
                                                {3, 16}, {3, 32}, {3, 64}};

struct BandsParams {
  const void* source;
  const void* weight;
  const void* bias;           // may be null
  float lowest = kUnbounded;  // that y may be
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

struct BandsFit {
  static constexpr EngineId kEngines[] = {EngineId::kCudaBands};

  BandsParams params{};      // complete except for the buffers
  int depth = 0;             // source columns of a step
  int steps = 0, tiles = 0;  // steps of a group; steps beside each other in a tile
  int64_t blocks = 0;        // 0: no tile fits
  int64_t shared_bytes = 0;  // per block
  double microseconds = 0;   // predicted
  double products = 0;       // average (step, band) pairs per row of taps

  int64_t columns() const { return int64_t{tiles} * depth; }  // output columns of a block
  BandsKernel kernel() const { return {steps, tiles * depth}; }
  void describe(Text& out) const;
};

// The largest tile of a block: output columns, and output rows of all its images together.
struct BandsTile {
  const char* name;
  int columns, rows;
};
constexpr int kBandMostRows = kBandRows * kBandMostWarps;
constexpr BandsTile kBandTiles[] = {
    {"tiles_16x256", 16, kBandMostRows},     {"tiles_32x256", 32, kBandMostRows},
    {"tiles_64x256", 64, kBandMostRows},     {"tiles_16x128", 16, kBandMostRows / 2},
    {"tiles_32x128", 32, kBandMostRows / 2}, {"tiles_64x128", 64, kBandMostRows / 2},
};

// Returns the tile with the shortest predicted time. The problem must not have been refused.
BandsFit fit_bands(const ConvProblem& problem, const DeviceCaps& caps,
                   std::span<const BandsTile> tiles = kBandTiles);

// Completes the kernel parameters with the buffers of one call. Their alignment limits the widths
// of copies and stores.
BandsParams make_bands_params(const ConvProblem& problem, const BandsFit& fit,
                              const Buffers& buffers);

}  // namespace convx
