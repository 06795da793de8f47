// Stages the taps and the source rows of cuda_bands in shared memory.
#pragma once

#include "core/arithmetic.h"
#include "device/cp_async.cuh"
#include "engines/cuda/depthwise/bands_geometry.h"
#include "kernels/tensor_types.cuh"

namespace convx {

// The part of the output that a block computes: rows and columns of one filter's plane.
struct BandsBlock {
  int filter, share;
  int first_row, rows;        // output rows
  int first_column;           // output column
  int first_line, lines;      // staged source rows
  int origin;                 // source column that is staged first; may lie outside the image
  int begin, end;             // staged columns inside the image
  int first_step, last_step;  // steps that contain any of them; last_step is exclusive
  FastDivmod by_units;        // copy units of a line
  FastDivmod by_lines, by_rows;
};

__device__ __forceinline__ BandsBlock locate_bands_block(const BandsParams& p, int depth, int tiles,
                                                         int steps) {
  BandsBlock block;
  int rest = static_cast<int>(blockIdx.x);
  block.first_column = rest % p.column_tiles * tiles * depth;
  rest /= p.column_tiles;
  block.first_row = rest % p.row_tiles * p.tile_rows;
  rest /= p.row_tiles;
  block.share = rest % p.shares;
  block.filter = rest / p.shares;
  block.rows = min(p.tile_rows, p.row.count - block.first_row);
  const int seen = block.first_row * p.row.source_step + p.row.offset0;
  const int reach = (block.rows - 1) * p.row.source_step + (p.row.taps - 1) * p.row.offset_step + 1;
  block.first_line = max(seen, 0);
  block.lines = max(min(seen + reach, p.source_height) - block.first_line, 0);
  block.origin = block.first_column + p.column.offset0 - p.lead;
  const int staged = count_staged_steps(tiles, steps, p.groups) * depth;
  block.begin = max(-block.origin, 0);
  block.end = min(staged, p.source_width - block.origin);
  block.first_step = block.begin / depth;
  block.last_step = block.end > block.begin ? (block.end + depth - 1) / depth : 0;
  block.by_units = FastDivmod(max((block.end - block.begin) / p.unit, 1));
  block.by_lines = FastDivmod(max(block.lines, 1));
  block.by_rows = FastDivmod(block.rows);
  return block;
}

// Writes the bands of a filter. A warp writes one row of taps at a time.
template <typename T>
__device__ __forceinline__ void stage_bands(const BandsParams& p, int filter, T* bands) {
  constexpr int kCopies = count_band_copies(sizeof(T));
  const FastDivmod by_dilation(p.column.offset_step);
  const int lane = threadIdx.x % 32;
  for (int r = static_cast<int>(threadIdx.x) / 32; r < p.row.taps; r += p.warps) {
    const T* taps = static_cast<const T*>(p.weight) + filter * p.weight_k +
                    (p.row.tap0 + r * p.row.tap_step) * p.weight_r + p.column.tap0 * p.weight_s;
    T* band = bands + r * kCopies * p.band_elements;
#pragma unroll 4
    for (int element = lane; element < p.band_elements + kCopies - 1; element += 32) {
      int tap = max(element - kBandFront, 0);
      const bool is_tap =
          by_dilation.split(tap) == 0 && element >= kBandFront && tap < p.column.taps;
      const T value = is_tap ? taps[tap * p.column.tap_step * p.weight_s] : round_to<T>(0.0f);
      if (element < p.band_elements) band[element] = round_operand(value);
      if (kCopies == 2 && element > 0) band[p.band_elements + element - 1] = value;
    }
  }
}

// Calls visit<unit>(global address, staged address) for every unit of the images' lines that the
// calling thread owns. The assignment is fixed, so a thread always sees the units that it copied.
template <typename T, typename Visit>
__device__ __forceinline__ void visit_lines(const BandsParams& p, const BandsBlock& block,
                                            int first_image, int images, unsigned char* stage,
                                            const Visit& visit) {
  if (block.last_step == 0) return;
  visit_unit<T>(p.unit, [&](auto unit_constant) {
    constexpr int kUnit = decltype(unit_constant)::value;
    const T* source = static_cast<const T*>(p.source) + first_image * p.source_n +
                      block.filter / p.multiplier * p.source_c + block.first_line * p.source_h +
                      (block.origin + block.begin);
    const int units = (block.end - block.begin) / kUnit;
    const int count = images * block.lines * units;
#pragma unroll 4
    for (int index = threadIdx.x; index < count; index += blockDim.x) {
      int line = index;
      const int unit = block.by_units.split(line);
      int image = line;
      const int row = block.by_lines.split(image);
      visit.template operator()<kUnit>(
          source + (image * p.source_n + row * p.source_h + unit * kUnit),
          reinterpret_cast<T*>(stage + (image * p.span + row) * p.line_pitch) +
              (block.begin + unit * kUnit));
    }
  });
}

// Issues the copies of the lines of `images` images.
template <typename T>
__device__ __forceinline__ void stage_lines(const BandsParams& p, const BandsBlock& block,
                                            int first_image, int images, unsigned char* stage) {
  visit_lines<T>(p, block, first_image, images, stage,
                 []<int kUnit>(const T* from, T* to) { copy_unit<kUnit>(to, from, true); });
}

// Rounds staged float32 values to TF32. Each thread rounds the units that it copied, so waiting for
// its own copies is enough.
template <typename T>
__device__ __forceinline__ void round_lines(const BandsParams& p, const BandsBlock& block,
                                            int first_image, int images, unsigned char* stage) {
  if constexpr (sizeof(T) == 4) {
    visit_lines<T>(p, block, first_image, images, stage,
                   []<int kUnit>(const T*, T* to) { round_unit<kUnit>(to); });
  }
}

}  // namespace convx
