// Geometry of cuda_diagonal. The planner fills DiagonalParams, which are complete except for the
// buffers, and the kernel receives them in constant memory. Plain data and host code.
//
// A source chunk is 32 bytes of a pixel's channels. A filter chunk is 16 filters, or 8 in TF32 if
// groups are small. Its filters read the channels of their groups, which lie in up to `depth`
// neighbouring chunks of the source. With zeros where channel and filter belong to different
// groups, the weights of a tap are a block-diagonal matrix:
//
//     [16 pixels][channel of a source chunk]  x  [channel][filter of the chunk],  for each tap and
//                                                                                  source chunk
// Shared memory:
//     weights   [source chunk of a filter chunk][tap][filter chunk][lane][words], in the order of
//               the MMA's B operand
//     steps     [phase][source chunk of a filter chunk][tap of the phase] DiagonalStep
//     bias      [filter], float32
//     stages    [2][row][column][pixel_bytes]: source pixels, with zeros for padding
#pragma once

#include <cstdint>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"

namespace convx {

constexpr int kChunkBytes = 32;
constexpr int kDiagonalWarps = 8;
constexpr int kDiagonalThreads = 32 * kDiagonalWarps;
constexpr int kDiagonalBlocks = 3;      // per multiprocessor, limited by registers
constexpr int kDiagonalMostChunks = 8;  // filter chunks of a block
constexpr int kDiagonalMostPhases = 4;  // per axis: strides of an input gradient
// A warp computes 64 pixels at once, four MMAs of 16, or 16 if there are few pixels in all.
constexpr int kDiagonalManyPixels = 64;
constexpr int kDiagonalFewPixels = 16;
constexpr int kDiagonalTapBatch = 9;  // weights that a thread loads before it stores the first

// Channels of a source chunk: 16 in 16 bits, 8 in TF32.
constexpr int count_chunk_channels(int64_t element_bytes) {
  return static_cast<int>(kChunkBytes / element_bytes);
}
// The columns of an MMA are a piece of 8 filters; a filter chunk has one or two pieces.
constexpr int count_chunk_filters(int pieces) { return 8 * pieces; }
// Words of weights that a lane reads per tap and source chunk.
constexpr int count_chunk_words(int pieces) { return 2 * pieces; }

struct DiagonalKernel {
  int pieces;       // of a filter chunk: 8 filters each
  int warp_pixels;  // that a warp computes at once

  bool operator==(const DiagonalKernel&) const = default;
};
// The compiled kernels: TF32 has all of them, 16-bit types those with two pieces.
inline constexpr DiagonalKernel kDiagonalKernels[] = {{2, kDiagonalManyPixels},
                                                      {2, kDiagonalFewPixels},
                                                      {1, kDiagonalManyPixels},
                                                      {1, kDiagonalFewPixels}};

// One phase of an axis (core/gather_view.h). Forward passes have one.
struct DiagonalPhase {
  int count;                 // lattice points
  int target_start;          // target position of lattice point 0
  int taps, tap0, tap_step;  // kernel rows or columns; the step may be negative
  int first;                 // staged position of lattice point 0 under the first tap
  int step, residue_step;    // from one tap to the next
};

// Rows or columns of a tile in shared memory. Columns are sorted by their residue modulo
// source_step, so that neighbouring outputs read neighbouring pixels, without bank conflicts:
//     source position = origin + first lattice point * source_step + residue + position * gap
// Rows have a single residue.
struct DiagonalAxis {
  int source_step, target_step;
  int origin;
  int residues, gap;
  int lattice_step;  // positions from one lattice point to the next
  int span;          // source positions from the first to the last that one lattice point reads
  int count;         // lattice points of the longest phase
  int phases;
  DiagonalPhase phase[kDiagonalMostPhases];
};

// One MMA step of a warp: where it finds its operands.
struct DiagonalStep {
  uint32_t pixel;   // bytes from the first source chunk of an output's staged pixel
  uint32_t weight;  // bytes from the filter chunk's first words
};

struct DiagonalParams {
  const void* source;
  const void* weight;
  const void* bias;           // may be null
  float lowest = kUnbounded;  // that y may be; the kernel applies no ReLU
  void* target;
  int64_t source_n, target_n;
  int source_h, source_w, target_h, target_w;  // in elements; channels are contiguous
  int64_t weight_group, weight_target, weight_source, weight_r, weight_s;
  int images, sources, targets;          // channels of source and target
  int source_channels, target_channels;  // the same of a group
  int source_height, source_width;
  int kernel_height, kernel_width;
  DiagonalAxis row, column;

  int chunks, sets;          // filter chunks of a block; number of such sets of chunks
  int source_chunks, depth;  // source chunks of a block, and the most that a filter chunk reads
  int tile_rows, tile_columns;
  int row_tiles, column_tiles;
  int staged_rows, staged_columns;
  int residue_columns;  // staged columns of one residue
  int pixel_bytes, stage_bytes;
  int steps_offset, bias_offset, pixels_offset;  // in bytes of shared memory
  int unit;                                      // channels per copy
  int lines_per_pass;  // staged rows that the threads of a block copy at once
  bool vectors;        // a lane's outputs of a pixel are stored as one vector
  FastDivmod by_tile_columns, by_residue_columns, by_kernel_width;
  FastDivmod by_units, by_row_units;  // copy units of a pixel, and of a staged row
};

struct DiagonalFit {
  static constexpr EngineId kEngines[] = {EngineId::kCudaDiagonal};

  DiagonalParams params{};
  DiagonalKernel kernel{};
  int64_t blocks = 0;        // 0: no tile fits
  int64_t shared_bytes = 0;  // per block
  double mean_depth = 0;     // source chunks that a filter chunk reads
  double microseconds = 0;   // predicted

  void describe(Text& out) const;
};

// A variant: tiles of more than most / 2 and at most `most` pixels.
struct DiagonalTileSize {
  const char* name;
  int most;
};
constexpr DiagonalTileSize kDiagonalTileSizes[] = {
    {"tiles_32", 32},   {"tiles_64", 64},   {"tiles_128", 128},
    {"tiles_256", 256}, {"tiles_512", 512}, {"tiles_1024", 1024},
};

// Without a search, a time that no tile is predicted to beat.
double bound_diagonal_us(const ConvProblem& problem, const DeviceCaps& caps);

// Returns the tile with the shortest predicted time, or one without blocks if none fits.
DiagonalFit fit_diagonal(const ConvProblem& problem, const DeviceCaps& caps);
// Returns the fastest tile of one size, or one without blocks.
DiagonalFit fit_diagonal(const ConvProblem& problem, const DeviceCaps& caps,
                         const DiagonalTileSize& size);

// Completes the kernel parameters with the buffers of one call. Their alignment limits the widths
// of copies and stores.
DiagonalParams make_diagonal_params(const ConvProblem& problem, const DiagonalFit& fit,
                                    const Buffers& buffers);

}  // namespace convx
