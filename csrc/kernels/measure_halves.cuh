// How a block measures values for the scales of scaled fp16 (half_scales.cuh):
//
//   scale = the power of 2 that brings the largest magnitude to a fixed exponent
//
// Blocks have 256 threads. Shared memory: one Measure per warp, 96 bytes.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace convx {

inline constexpr int kMeasureThreads = 256;
inline constexpr int kSampled = 16;  // source values that each thread samples

// The largest magnitude and the signs of some values.
struct Measure {
  uint32_t largest = 0;            // bits of the largest magnitude
  int positive = 0, negative = 0;  // how many

  __device__ __forceinline__ void look(float value) {
    largest = max(largest, __float_as_uint(value) & 0x7fffffffu);
    positive += value > 0;
    negative += value < 0;
  }
  __device__ __forceinline__ void join(const Measure& other) {
    largest = max(largest, other.largest);
    positive += other.positive;
    negative += other.negative;
  }
  __device__ __forceinline__ bool is_one_signed() const {
    return 8 * min(positive, negative) < positive + negative;
  }
};

// Joins the measures of the block's threads; thread 0 gets the result. shared: one per warp.
__device__ __forceinline__ Measure join_block(Measure own, Measure* shared) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    own.join({__shfl_xor_sync(0xffffffff, own.largest, distance),
              __shfl_xor_sync(0xffffffff, own.positive, distance),
              __shfl_xor_sync(0xffffffff, own.negative, distance)});
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = own;
  __syncthreads();
  for (int warp = 1; warp < kMeasureThreads / 32; ++warp) {
    own.join(shared[warp]);
  }
  return own;
}

// A float32 tensor that is sampled.
struct SampledTensor {
  const float* values;
  int images, channels, height, width;
  Strides strides;
};

// The coordinates of sample i are fractional multiples of irrational numbers, one per axis, so the
// samples spread evenly and never all fall on one row or column.
__device__ __forceinline__ Measure sample_tensor(const SampledTensor& tensor) {
  Measure measure;
#pragma unroll
  for (int i = 0; i < kSampled; ++i) {
    const uint32_t sample = threadIdx.x + i * kMeasureThreads;
    const int image = static_cast<int>(__umulhi(sample * 0xdb4f0b91u, tensor.images));
    const int channel = static_cast<int>(__umulhi(sample * 0xbbe05635u, tensor.channels));
    const int row = static_cast<int>(__umulhi(sample * 0xa0f2ec75u, tensor.height));
    const int column = static_cast<int>(__umulhi(sample * 0x89e18285u, tensor.width));
    measure.look(__ldg(tensor.values + image * tensor.strides.n + channel * tensor.strides.c +
                       row * tensor.strides.h + column * tensor.strides.w));
  }
  return measure;
}

}  // namespace convx
