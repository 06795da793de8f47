// Loaders of the A operand: a warp reads 16 pixels by 32 bytes of channels of a stage into
// registers, four words per lane, in the layout of wgmma's A fragments (wgmma.cuh). Stages of NCHW
// tensors are transposed on the way.
//
//     kUsed    false: the tensor cores read pixels from shared memory
//     kByTile  true: start_tile() is called for every tile
//     kRounds  true: the stage holds float32 values that have not been rounded to TF32 yet
#pragma once

#include "device/shared_memory.cuh"
#include "engines/cuda/boxes/boxes_ring.cuh"

namespace convx {

// channels_last: no fragments.
struct NoFragments {
  static constexpr bool kUsed = false, kByTile = false;

  __device__ __forceinline__ explicit NoFragments(const BoxesParams&) {}
};

// NCHW stages [line][channel][128 bytes of pixels]. A warp's 16 pixels lie in one line.
template <TensorMath kMath>
class LineFragments {
  static constexpr bool kWide = operand_bytes(kMath) == 4;

 public:
  static constexpr bool kUsed = true, kByTile = false, kRounds = false;

  __device__ __forceinline__ explicit LineFragments(const BoxesParams&) {
    const int lane = threadIdx.x & 31, matrix = lane / 8, pixel = first_warp_pixel();
    const int line = pixel / line_pixels(kMath), first = pixel % line_pixels(kMath);
    place_ = line * (box_chunk(kMath) * kBoxLineBytes);
    if constexpr (kWide) {
      place_ += lane % 4 * kBoxLineBytes + (first + lane / 4) * 4;
    } else {
      // Lane 8 * m + i addresses row i of matrix m: the lower or upper eight pixels (m % 2) of the
      // lower or upper eight channels (m / 2).
      place_ += (matrix / 2 * 8 + lane % 8) * kBoxLineBytes + (first + matrix % 2 * 8) * 2;
    }
  }

  __device__ __forceinline__ void load(uint32_t from, int /*stage*/, int /*piece*/, int step,
                                       uint32_t (&words)[4]) const {
    from += place_;
    if constexpr (kWide) {
      from += 8 * step * kBoxLineBytes;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = load_word(swizzle_line(from + i / 2 * 4 * kBoxLineBytes + i % 2 * 32));
      }
    } else {
      load_turned_matrices(swizzle_line(from + 16 * step * kBoxLineBytes), words);
    }
  }

 private:
  uint32_t place_;
};

// NCHW stages [image][channel][plane]. A warp's 16 pixels may lie in several images.
template <TensorMath kMath, int kPieces, bool kPaired>
class ImageFragments {
  static constexpr int kBytes = operand_bytes(kMath);
  // An MMA has two units of channels. In each, a lane reads kOwn consecutive channels.
  static constexpr int kUnit = 16 / kBytes;
  static constexpr int kOwn = kUnit / 4;

 public:
  static constexpr bool kUsed = true, kByTile = false;
  // Bulk copies do not round; the TMA boxes of other forms do.
  static constexpr bool kRounds = kMath == TensorMath::kTf32;

  __device__ __forceinline__ explicit ImageFragments(const BoxesParams& p) : p_(p), pixels_(p) {
    const int channels = (threadIdx.x & 3) * kOwn * p.plane * kBytes;
#pragma unroll
    for (auto& piece : pixels_.place) {
      // Rows without a pixel read some other one: their accumulators are never stored.
#pragma unroll
      for (int& place : piece) place = max(place, 0) + channels;
    }
  }

  // Channels past the last one are replaced by zeros, because the stage still holds older values
  // there. Channels come in whole units, so a unit is either present or missing.
  __device__ __forceinline__ void load(uint32_t from, int stage, int piece, int step,
                                       uint32_t (&words)[4]) const {
    const int channels = p_.group_sources - stage * box_chunk(kMath);
    const auto& place = pixels_.place[piece];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int unit = 2 * step + half;
      uint32_t& lower = words[2 * half];
      uint32_t& upper = words[2 * half + 1];
      const uint32_t at = from + unit * (16 * p_.plane);
      if constexpr (kOwn == 1) {
        lower = load_word(at + place[0]);
        upper = load_word(at + place[1]);
      } else {
        load_pairs(at, place, lower, upper);
      }
      if (unit * kUnit >= channels) lower = upper = 0;
    }
  }

 private:
  // Reads two channels of both pixels.
  __device__ __forceinline__ void load_pairs(uint32_t at, const int (&place)[2], uint32_t& lower,
                                             uint32_t& upper) const {
    const uint32_t next = at + kBytes * p_.plane;
    if constexpr (kPaired) {
      const uint32_t first = load_word(at + place[0]), second = load_word(next + place[0]);
      lower = __byte_perm(first, second, 0x5410);
      upper = __byte_perm(first, second, 0x7632);
    } else {
      lower = __byte_perm(load_half_word(at + place[0]), load_half_word(next + place[0]), 0x5410);
      upper = __byte_perm(load_half_word(at + place[1]), load_half_word(next + place[1]), 0x5410);
    }
  }

  const BoxesParams& p_;
  ImagePixels<kMath, kPieces, kPaired> pixels_;
};

}  // namespace convx
