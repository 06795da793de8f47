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

// How each kind of product represents 8 channels of a position.
template <TensorMath>
struct WindowUnit;

template <>
struct WindowUnit<TensorMath::kTf32> {
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
struct WindowUnit<TensorMath::kIeee> {
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
struct WindowUnit<TensorMath::kBFloat16> : WindowUnit16 {};
template <>
struct WindowUnit<TensorMath::kFloat16> : WindowUnit16 {};

}  // namespace convx
