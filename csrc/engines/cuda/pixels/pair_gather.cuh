// Gathers the A operand of a step from staged split pairs (pair_load.cuh): words of shared memory
// are words of the operand.
#pragma once

#include "device/shared_memory.cuh"
#include "engines/cuda/pixels/pixel_place.cuh"

namespace convx {

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
