// The kernel that finds the scales of scaled fp16 (half_scales.cuh).
//
//   scale = the power of 2 that brings the largest magnitude to a fixed exponent
//
// Block 0 samples 4096 source values for the source's scale, and estimates from them whether sums
// have enough non-zero terms. Block f + 1 reads all values of filter f. Blocks have 256 threads.
//
// Shared memory: one Measure per warp, 96 bytes.
#pragma once

#include "core/problem.h"
#include "cuda/launch.h"
#include "device/dependent_launch.cuh"
#include "kernels/half_scales.cuh"
#include "planning/tensor_params.h"

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

__device__ __forceinline__ Measure sample_source(const TensorParams& p) {
  return sample_tensor({static_cast<const float*>(p.source),
                        p.images,
                        p.groups * p.group_sources,
                        p.source_height,
                        p.source_width,
                        {p.source_n, p.source_c, p.source_h, p.source_w}});
}

// filter: counted over all groups.
__device__ __forceinline__ Measure measure_filter(const TensorParams& p, int filter) {
  const int group = filter / p.group_targets;
  const float* values = static_cast<const float*>(p.filters) + group * p.filter_group +
                        (filter - group * p.group_targets) * p.filter_target;
  const int taps = p.tap_rows * p.tap_columns;
  // True if a filter's values [channel][r][s] are contiguous, in any order of taps.
  const bool dense = p.filter_source == taps && p.filter_s == 1 && p.filter_r == p.tap_columns &&
                     p.tap_r_step * p.tap_r_step == 1 && p.tap_s_step * p.tap_s_step == 1;
  Measure measure;
#pragma unroll 4
  for (int i = threadIdx.x; i < p.group_sources * taps; i += kMeasureThreads) {
    int64_t offset = i;
    if (!dense) {
      const int channel = i / taps, tap = i - channel * taps;
      const int r = tap / p.tap_columns, s = tap - r * p.tap_columns;
      offset = channel * p.filter_source + (p.tap_r0 + r * p.tap_r_step) * p.filter_r +
               (p.tap_s0 + s * p.tap_s_step) * p.filter_s;
    }
    measure.look(__ldg(values + offset));
  }
  return measure;
}

template <typename Params>  // one copy for all files
__global__ void __launch_bounds__(kMeasureThreads)
    measure_kernel(const __grid_constant__ Params p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // like the kernels that read the scales
  wait_for_kernels_before();
  let_next_kernel_start();
  extern __shared__ __align__(16) char memory[];
  const int filter = static_cast<int>(blockIdx.x) - 1;
  const Measure measure = join_block(filter < 0 ? sample_source(p) : measure_filter(p, filter),
                                     reinterpret_cast<Measure*>(memory));
  if (threadIdx.x != 0) return;
  if (filter < 0) {
    const float share = (measure.positive + measure.negative) /
                        static_cast<float>(kSampled * kMeasureThreads);  // not zero
    p.scales->unfit = share * p.group_sources * p.tap_rows * p.tap_columns < p.min_terms;
    p.scales->source = find_scale(measure.largest, kSourceExponent);
    p.scales->one_signed = measure.is_one_signed();
    p.scales->careful = 0;
  } else {
    const float scale = find_scale(measure.largest, kFilterExponent);
    filter_scales(p.scales)[filter] = measure.is_one_signed() ? -scale : scale;
  }
#endif
}

inline void measure(const LaunchSite& site, const TensorParams& params) {
  const int filters = params.groups * params.group_targets;
  launch_early<measure_kernel<TensorParams>>(site, dim3(static_cast<unsigned>(filters + 1)),
                                             kMeasureThreads,
                                             kMeasureThreads / 32 * sizeof(Measure), params);
}

}  // namespace convx
