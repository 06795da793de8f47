// How values lie in a tile: [position][lane_bytes of channels], swizzled, in the form the tensor
// cores multiply.
#pragma once

#include <cstdint>

#include "device/shared_memory.cuh"
#include "device/tensor_formats.cuh"
#include "engines/cuda_window/window_shape.h"

namespace convx {

// 16-byte pieces of a tile are exchanged within 1024 bytes, by the address bits above 128.
__device__ __forceinline__ uint32_t swizzle(uint32_t offset, uint32_t lane_bytes) {
  return offset ^ (((offset >> 7) & (lane_bytes / 16 - 1)) << 4);
}

// Split float32 values are this much larger than the values: then no part of the smallest of them
// underflows. Values and sums too large for it become infinite or NaN, and are formed again in
// float32 when they are stored.
inline constexpr float kSplitScale = 0x1p24f;
inline constexpr float kSplitUnscale = 0x1p-48f;  // of a product of two

// kSplitScale * value = part 0 + part 1 + part 2 exactly, each a bfloat16: 24 bits are three
// times 8.
struct SplitPair {
  uint32_t part[3];

  __device__ __forceinline__ SplitPair(float first, float second) {
    first *= kSplitScale;
    second *= kSplitScale;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      part[i] = pack_bfloat16(first, second);
      first -= __uint_as_float(part[i] << 16);
      second -= __uint_as_float(part[i] & 0xffff0000u);
    }
  }
};

// How each kind of product represents 8 channels of a position.
template <WindowMath>
struct WindowUnit;

template <>
struct WindowUnit<WindowMath::kTf32> {
  using Source = float;
  static constexpr int kBytes = 32;
  static constexpr int kPlanes = 1;

  static __device__ __forceinline__ void store(uint32_t tile, uint32_t offset, uint32_t lane_bytes,
                                               int, const float (&v)[8]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = round_to_tf32(v[4 * half + i]);
      store_16_bytes(tile + swizzle(offset + 16 * half, lane_bytes), words);
    }
  }
};

template <>
struct WindowUnit<WindowMath::kIeee> {
  using Source = float;
  static constexpr int kBytes = 16;
  static constexpr int kPlanes = 3;

  static __device__ __forceinline__ void store(uint32_t tile, uint32_t offset, uint32_t lane_bytes,
                                               int plane_bytes, const float (&v)[8]) {
    uint32_t words[3][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const SplitPair pair(v[2 * i], v[2 * i + 1]);
#pragma unroll
      for (int plane = 0; plane < 3; ++plane) words[plane][i] = pair.part[plane];
    }
    const uint32_t address = tile + swizzle(offset, lane_bytes);
#pragma unroll
    for (int plane = 0; plane < 3; ++plane) {
      store_16_bytes(address + plane * plane_bytes, words[plane]);
    }
  }
};

struct WindowUnit16 {
  using Source = uint16_t;  // bits of either 16-bit type
  static constexpr int kBytes = 16;
  static constexpr int kPlanes = 1;

  static __device__ __forceinline__ void store(uint32_t tile, uint32_t offset, uint32_t lane_bytes,
                                               int, const uint16_t (&v)[8]) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = static_cast<uint32_t>(v[2 * i]) | (static_cast<uint32_t>(v[2 * i + 1]) << 16);
    }
    store_16_bytes(tile + swizzle(offset, lane_bytes), words);
  }
};
template <>
struct WindowUnit<WindowMath::kBFloat16> : WindowUnit16 {};
template <>
struct WindowUnit<WindowMath::kFloat16> : WindowUnit16 {};

}  // namespace convx
