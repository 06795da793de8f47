// The last kernel of PhasesForm::kTransposed: transposes results from pixels (channels_last, in the
// workspace) to the planes of the target,
//
//     planes[n][c][p] = pixels[n][place(p)][c]     zeros where p has no place
//
// p counts the pixels of a plane, place(p) is the lattice point and the phase of p
// (phases_shape.h). A thread transposes 16 bytes of channels by as many pixels in registers, e.g. 4
// x 4 values of 32 bits. A warp has 4 threads along the channels and 8 along the pixels:
//
//     pixels   8 pieces of 64 bytes per instruction     16 bytes per thread
//     planes   4 pieces of 8 units per instruction      a unit per thread: 16 bytes or, if rows of
//                                                       pixels are not aligned that well, less
//
// so that both sides access whole 32-byte sectors. The pixels of a thread are `kUnit` neighbours
// out of every 8 * kUnit. No shared memory.
#pragma once

#include "device/dependent_launch.cuh"
#include "device/memory.cuh"
#include "engines/cuda/input_grad/phases_shape.h"

namespace convx {

// A square of values: lines of 16 bytes.
template <typename T>
struct TransposeSquare {
  static constexpr int kSide = kTransposeBytes / sizeof(T);
  uint4 lines[kSide];
};

__device__ __forceinline__ uint32_t word_of(const uint4& line, int index) {
  return index == 0 ? line.x : index == 1 ? line.y : index == 2 ? line.z : line.w;
}

template <typename T>
__device__ __forceinline__ TransposeSquare<T> transpose_square(const TransposeSquare<T>& from) {
  TransposeSquare<T> to;
#pragma unroll
  for (int i = 0; i < TransposeSquare<T>::kSide; ++i) {
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (sizeof(T) == 4) {
        words[j] = word_of(from.lines[j], i);
      } else {
        words[j] = __byte_perm(word_of(from.lines[2 * j], i / 2),
                               word_of(from.lines[2 * j + 1], i / 2), i % 2 == 0 ? 0x5410 : 0x7632);
      }
    }
    to.lines[i] = {words[0], words[1], words[2], words[3]};
  }
  return to;
}

// The square of a thread in one tile of its warp.
template <typename T, int kUnit>
class Transposer {
  using Square = TransposeSquare<T>;
  static constexpr int kSide = Square::kSide;

 public:
  __device__ __forceinline__ Transposer(const TransposeParams& p, int tile) : p_(p) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int rest = tile;
    channel_ =
        (p.by_channel_tiles.split(rest) * kTransposeChannelLanes + lane / kTransposePixelLanes) *
        kSide;
    const int pixel_tile = p.by_pixel_tiles.split(rest);
    first_pixel_ = pixel_tile * kTransposePixelLanes * kSide + lane % kTransposePixelLanes * kUnit;
    planes_ = static_cast<T*>(p.planes) + rest * p.planes_n + channel_ * p.planes_c;
    pixels_ = static_cast<const T*>(p.pixels) + rest * p.pixels_n + channel_;
  }

  __device__ __forceinline__ void run() const {
    if (channel_ < p_.channels) store_planes(transpose_square(load_pixels()));
  }

 private:
  // The pixel of a line, or of a column, of the thread's square.
  __device__ __forceinline__ int pixel(int index) const {
    return first_pixel_ + index / kUnit * kUnit * kTransposePixelLanes + index % kUnit;
  }

  // Stores the channels and the pixels that the planes have.
  __device__ __forceinline__ void store_planes(const Square& square) const {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int j = 0; j < kSide; j += kUnit) {
        if (channel_ + i >= p_.channels || pixel(j) >= p_.plane) continue;
        store_unit(planes_ + i * p_.planes_c + pixel(j), square.lines[i], j);
      }
    }
  }

  // Stores the unit that starts with value j of a line.
  __device__ __forceinline__ static void store_unit(T* to, const uint4& line, int j) {
    constexpr int kBytes = kUnit * sizeof(T);
    const int word = j * static_cast<int>(sizeof(T)) / 4;
    if constexpr (kBytes == 16) {
      store_global_16_bytes(to, {line.x, line.y, line.z, line.w});
    } else if constexpr (kBytes == 8) {
      store_global_8_bytes(to, word_of(line, word), word_of(line, word + 1));
    } else if constexpr (kBytes == 4) {
      *reinterpret_cast<uint32_t*>(to) = word_of(line, word);
    } else {
      *to = static_cast<T>(word_of(line, word) >> (j % 2 == 0 ? 0 : 16));
    }
  }

  // Loads are predicated: all of them are in flight before the first result is needed.
  __device__ __forceinline__ Square load_pixels() const {
    Square square{};
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      int offset = 0;
      const bool has_place = find_place(pixel(j), offset) && pixel(j) < p_.plane;
      if (has_place) square.lines[j] = *reinterpret_cast<const uint4*>(pixels_ + offset);
    }
    return square;
  }

  // Sets the offset of a pixel of the planes. Returns false if no phase has it.
  __device__ __forceinline__ bool find_place(int pixel, int& offset) const {
    int row = pixel;
    const int column = p_.by_columns.split(row);
    int shifted_row = row + p_.rows.pad, shifted_column = column + p_.columns.pad;
    const int row_phase = p_.rows.by_step.split(shifted_row);
    const int column_phase = p_.columns.by_step.split(shifted_column);
    offset = p_.rows.by_step.divide(row + p_.rows.frame) * p_.pixels_h +
             p_.columns.by_step.divide(column + p_.columns.frame) * p_.pixels_w +
             row_phase * p_.row_phase + column_phase * p_.column_phase;
    return row_phase < p_.rows.kept && column_phase < p_.columns.kept;
  }

  const TransposeParams& p_;
  int channel_, first_pixel_;
  T* planes_;
  const T* pixels_;
};

template <typename T, int kUnit>
__global__ void __launch_bounds__(kPhasesThreads)
    transpose_kernel(const __grid_constant__ TransposeParams p) {
  constexpr int kWarps = kPhasesThreads / 32;
  wait_for_kernels_before();
  let_next_kernel_start();
  for (int64_t tile = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; tile < p.tiles;
       tile += int64_t{gridDim.x} * kWarps) {
    Transposer<T, kUnit>(p, static_cast<int>(tile)).run();
  }
}

}  // namespace convx
