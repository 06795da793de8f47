// Gathers the A operand of a step, from the staged values of this thread's pixels.
//
//     PixelGather  reads values, and converts them for the MMA
//     PairGather   reads split pairs (pixel_load.cuh): words of shared memory are operand words
#pragma once

#include "device/memory.cuh"
#include "engines/cuda/pixels/pixel_place.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

// Iterates over the steps of a chunk. Thread t of warp w of a warpgroup has pixels 64b + 16w + t/4
// and the pixel 8 further of each block b, and of a step's k
//
//     32 bits   t%4 and t%4 + 4
//     16 bits   2(t%4), the next one, and both 8 further
template <TensorMath kMath, int kBlocks, bool kFolded>
class PixelGather {
  static constexpr bool kWide = kMath == TensorMath::kTf32 || kMath == TensorMath::kIeee;
  static constexpr int kElementBytes = kWide ? 4 : 2;
  static constexpr int kDepth = gathered_depth(kMath);
  static constexpr int kPixels = 2 * kBlocks;

 public:
  static constexpr int kPlanes = count_planes(kMath);
  using Operand = uint32_t[4];

  // Values of a step, as they are staged.
  struct Values {
    float wide[kWide ? kPixels : 1][kDepth];
    uint32_t words[kWide ? 1 : kPixels][2];
  };

  // distances: shared address of the distance table (folded k only).
  __device__ __forceinline__ PixelGather(const PixelParams& p, uint32_t distances)
      : p_(p), distances_(distances + (threadIdx.x & 3) * (kDepth * 4)) {
    channel_bytes_ = p.channel_pitch * kElementBytes;
    column_bytes_ = p.offset_w_step * p.position_pitch * kElementBytes;
    const int row = (p.bands ? p.offset_h_step : 1) * p.row_pitch - p.tap_columns * p.offset_w_step;
    row_bytes_ = row * p.position_pitch * kElementBytes;
    pairs_ = !kWide && !kFolded && p.channels_last;
  }

  __device__ __forceinline__ void start_window(const StagedTile& staged, int window) {
    const int first = window + (threadIdx.x & 127) / 32 * 16 + (threadIdx.x & 31) / 4;
    const int quad = threadIdx.x & 3;
    const int channel = kFolded ? 0 : kDepth == 2 ? quad : 2 * quad;
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      const int position = staged.base(first + i / 2 * kPixelBlock + i % 2 * 8);
      base_[i] = position * p_.position_pitch * kElementBytes + channel * channel_bytes_;
    }
  }

  __device__ __forceinline__ void start_chunk(uint32_t stage) {
    place_ = stage;
    table_ = distances_;
    column_ = 0;
  }

  // Loads the values of the current step and advances to the next.
  template <bool kLast>
  __device__ __forceinline__ void load(Values& values) {
    uint32_t distance[kDepth];
    bool some[kDepth];  // false: a k of the padding, whose value is zero
#pragma unroll
    for (int n = 0; n < kDepth; ++n) {
      some[n] = true;
      if constexpr (kFolded) {
        const uint32_t entry = load_word(table_ + 4 * n);
        if constexpr (kLast) some[n] = static_cast<int>(entry) >= 0;
        distance[n] = place_ + entry;
      } else {
        const int channel = kDepth == 2 ? 4 * n : n % 2 + n / 2 * 8;
        distance[n] = place_ + channel * channel_bytes_;
      }
    }
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      if constexpr (kWide) {
#pragma unroll
        for (int n = 0; n < kDepth; ++n) {
          values.wide[i][n] = some[n] ? load_element<float>(base_[i] + distance[n]) : 0.f;
        }
      } else if (pairs_) {
        values.words[i][0] = load_word(base_[i] + distance[0]);
        values.words[i][1] = load_word(base_[i] + distance[2]);
      } else {
#pragma unroll
        for (int n = 0; n < kDepth; n += 2) {
          const uint32_t low = some[n] ? load_half_word(base_[i] + distance[n]) : 0;
          const uint32_t high = some[n + 1] ? load_half_word(base_[i] + distance[n + 1]) : 0;
          values.words[i][n / 2] = __byte_perm(low, high, 0x5410);
        }
      }
    }
    if constexpr (kFolded) {
      table_ += 4 * 4 * kDepth;
    } else {
      place_ += column_bytes_;
      if (++column_ == p_.tap_columns) {
        place_ += row_bytes_;
        column_ = 0;
      }
    }
  }

  // Converts values to operands, [block][component].
  static __device__ __forceinline__ void convert(const Values& values,
                                                 Operand (&a)[kBlocks][kPlanes]) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int i = 2 * block + row;
        if constexpr (kMath == TensorMath::kTf32) {
          a[block][0][row] = round_to_tf32(values.wide[i][0]);
          a[block][0][row + 2] = round_to_tf32(values.wide[i][1]);
        } else if constexpr (kMath == TensorMath::kIeee) {
          const SplitPair first(values.wide[i][0], values.wide[i][1]);
          const SplitPair second(values.wide[i][2], values.wide[i][3]);
#pragma unroll
          for (int plane = 0; plane < 3; ++plane) {
            a[block][plane][row] = first.part[plane];
            a[block][plane][row + 2] = second.part[plane];
          }
        } else {
          a[block][0][row] = values.words[i][0];
          a[block][0][row + 2] = values.words[i][1];
        }
      }
    }
  }

 private:
  const PixelParams& p_;
  const uint32_t distances_;  // this thread's entries of the first step
  uint32_t table_ = 0;        // this thread's entries of the current step
  uint32_t place_ = 0;        // address of the current tap, for a pixel with base 0
  int column_ = 0;            // column of the current tap
  int channel_bytes_, column_bytes_, row_bytes_;
  bool pairs_;              // true: neighbouring channels are one word
  uint32_t base_[kPixels];  // byte offsets of the pixels in a stage
};

// Iterates over the steps of a chunk. Thread t of warp w of a warpgroup has pixels 64b + 16w + t/4
// and the pixel 8 further of each block b, and pairs t%4 and t%4 + 4 of a step's 8 pairs.
template <TensorMath kMath, int kBlocks>
class PairGather {
  static constexpr int kPixels = 2 * kBlocks;

 public:
  static constexpr int kPlanes = count_planes(kMath);
  using Operand = uint32_t[4];

  // distances: shared address of the distance table.
  __device__ __forceinline__ PairGather(const PixelParams&, uint32_t distances)
      : distances_(distances + (threadIdx.x & 3) * (kPairDepth * 4)) {}

  __device__ __forceinline__ void start_window(const StagedTile& staged, int window) {
    const int first = window + (threadIdx.x & 127) / 32 * 16 + (threadIdx.x & 31) / 4;
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      const int position = staged.base(first + i / 2 * kPixelBlock + i % 2 * 8);
      base_[i] = position / 2 * pair_bytes(kMath);  // the pair with the first tap
    }
  }

  __device__ __forceinline__ void start_chunk(uint32_t stage) {
    place_ = stage;
    table_ = distances_;
  }

  // Gathers the current step and advances to the next.
  __device__ __forceinline__ void load(Operand (&a)[kBlocks][kPlanes]) {
#pragma unroll
    for (int n = 0; n < kPairDepth; ++n) {
      const uint32_t tap = place_ + load_word(table_ + 4 * n);
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        uint32_t words[kPlanes];
        load_parts(base_[i] + tap, words);
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane) {
          a[i / 2][plane][i % 2 + 2 * n] = words[plane];
        }
      }
    }
    table_ += 4 * 4 * kPairDepth;
  }

 private:
  static __device__ __forceinline__ void load_parts(uint32_t address, uint32_t (&words)[3]) {
#pragma unroll
    for (int part = 0; part < 3; ++part) words[part] = load_word(address + 4 * part);
  }
  static __device__ __forceinline__ void load_parts(uint32_t address, uint32_t (&words)[1]) {
    words[0] = load_word(address);
  }
  static __device__ __forceinline__ void load_parts(uint32_t address, uint32_t (&words)[2]) {
    load_8_bytes(address, words);
  }

  const uint32_t distances_;  // this thread's entries of the first step
  uint32_t table_ = 0;        // this thread's entries of the current step
  uint32_t place_ = 0;        // address of the stage
  uint32_t base_[kPixels];    // byte offsets of the pixels in a stage
};

}  // namespace convx
