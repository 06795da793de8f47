// The kernels that run before and after a convolution on tensor cores.
//
// measure finds the scales of scaled fp16. Block 0 samples 4096 source values for the source's
// scale, and estimates from them whether sums have enough non-zero terms. Block f + 1 reads all
// values of filter f.
//
// sum_partials adds slices in order:
//
//   target[i] = activation(partials[0][i] + partials[1][i] + ... + bias + residual[i])
//
// A thread computes one element per iteration of a grid-stride loop. No shared memory.
#include "kernels/around_mma.h"

#include <cstdint>

#include "core/arithmetic.h"
#include "cuda/launch.h"
#include "device/convert.cuh"
#include "device/dependent_launch.cuh"
#include "kernels/epilogue.cuh"
#include "kernels/half_scales.cuh"
#include "kernels/measure_halves.cuh"

namespace convx {

__device__ __forceinline__ Measure sample_source(const TensorParams& p) {
  return sample_tensor({static_cast<const float*>(p.source),
                        p.images,
                        p.groups * p.group_sources,
                        p.source_height,
                        p.source_width,
                        {p.source_n, p.source_c, p.source_h, p.source_w}});
}

// How the values of a filter are numbered: [channel][r][s].
struct FilterValues {
  FastDivmod by_taps, by_tap_columns;
};

// filter: counted over all groups.
__device__ __forceinline__ Measure measure_filter(const TensorParams& p, const FilterValues& order,
                                                  int filter) {
  const int group = filter / p.group_targets;
  const float* values = static_cast<const float*>(p.filters) + group * p.filter_group +
                        (filter - group * p.group_targets) * p.filter_target;
  const int taps = p.tap_rows * p.tap_columns;
  // True if a filter's values are contiguous, in any order of taps.
  const bool dense = p.filter_source == taps && p.filter_s == 1 && p.filter_r == p.tap_columns &&
                     p.tap_r_step * p.tap_r_step == 1 && p.tap_s_step * p.tap_s_step == 1;
  Measure measure;
#pragma unroll 8
  for (int i = threadIdx.x; i < p.group_sources * taps; i += kMeasureThreads) {
    int64_t offset = i;
    if (!dense) {
      int channel = i;
      int r = order.by_taps.split(channel);
      const int s = order.by_tap_columns.split(r);
      offset = channel * p.filter_source + (p.tap_r0 + r * p.tap_r_step) * p.filter_r +
               (p.tap_s0 + s * p.tap_s_step) * p.filter_s;
    }
    measure.look(__ldg(values + offset));
  }
  return measure;
}

__global__ void __launch_bounds__(kMeasureThreads)
    measure_kernel(const __grid_constant__ TensorParams p,
                   const __grid_constant__ FilterValues order) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // like the kernels that read the scales
  wait_for_kernels_before();
  let_next_kernel_start();
  extern __shared__ __align__(16) char memory[];
  const int filter = static_cast<int>(blockIdx.x) - 1;
  const Measure measure =
      join_block(filter < 0 ? sample_source(p) : measure_filter(p, order, filter),
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

void measure(const LaunchSite& site, const TensorParams& params) {
  const int filters = params.groups * params.group_targets;
  const FilterValues order{FastDivmod(int64_t{params.tap_rows} * params.tap_columns),
                           FastDivmod(params.tap_columns)};
  launch_early<measure_kernel>(site, filters + 1, kMeasureThreads,
                               kMeasureThreads / 32 * sizeof(Measure), params, order);
}

// The slices are dense arrays [image][filter][row][column]. dense: the target is such an array too.
__global__ void sum_partials_kernel(const __grid_constant__ TensorParams p, float lowest,
                                    DType dtype, int splits, int filters, bool dense) {
  if (must_return(p)) return;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.partial_stride;
       i += int64_t{gridDim.x} * blockDim.x) {
    float sum = p.partials[i];
#pragma unroll 4
    for (int part = 1; part < splits; ++part) sum += p.partials[i + part * p.partial_stride];
    int64_t to = i;
    if (!dense || p.bias != nullptr) {
      int64_t rest = i;
      const int64_t column = rest % p.target_width;
      rest /= p.target_width;
      const int64_t row = rest % p.target_height;
      rest /= p.target_height;
      const int64_t filter = rest % filters;
      const int64_t image = rest / filters;
      if (p.bias != nullptr) sum += load_as<float>(dtype, p.bias, filter);
      to = image * p.target_n + filter * p.target_c + row * p.target_h + column * p.target_w;
    }
    store_as(dtype, p.target, to, at_least(sum, lowest));
  }
}

void sum_partials(const LaunchSite& site, const TensorParams& params, int splits) {
  const int64_t plane = int64_t{params.target_height} * params.target_width;
  const int64_t filters = params.partial_stride / plane / params.images;
  const bool dense = params.target_w == 1 && params.target_h == params.target_width &&
                     params.target_c == plane && params.target_n == plane * filters;
  const Grid grid(count_loop_blocks(params.partial_stride, 256));
  launch_kernel<sum_partials_kernel>(site, grid, 256, 0, params, find_lowest(*site.problem),
                                     site.problem->dtype, splits, static_cast<int>(filters), dense);
}

}  // namespace convx
