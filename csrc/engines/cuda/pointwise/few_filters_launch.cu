// 1x1 convolution with up to eight filters per group, in float32 on the FMA units
// (pointwise_fit.h):
//
//     target[filter][pixel] = bias[filter] + sum over channels of
//                             weights[filter][channel] * source[channel][pixel]
//
// A block has 32 units of 16 bytes of pixels; each of its four warps sums a quarter of the
// channels.
//
//     source [channel][pixel]: a warp reads 512 bytes of a plane, eight channels in flight
//     sums   [filter][pixel]:  in registers; warp 0 adds those of the other warps in order
//
// Every source byte is read once, and there is little other work.
#include "cuda/launch.h"
#include "device/convert.cuh"
#include "device/memory.cuh"
#include "device/vectors.cuh"
#include "engines/cuda/pointwise/pointwise_fit.h"
#include "kernels/epilogue.cuh"

namespace convx {

// Grid: x over units of pixels, y over groups. Shared memory: weights [channel][kFilters], and the
// partial sums of warps 1 to 3, [warp][filter][value][lane].
template <typename T, int kFilters>
__global__ void __launch_bounds__(kFewThreads)
    few_filters_kernel(const __grid_constant__ FewFiltersParams p) {
  constexpr int kValues = 16 / static_cast<int>(sizeof(T));
  constexpr int kTogether = 8;  // loads in flight
  extern __shared__ __align__(16) char memory[];
  auto* const weights = reinterpret_cast<float (*)[kFilters]>(memory);
  auto* const others =
      reinterpret_cast<float (*)[kFilters][kValues][kFewUnits]>(weights + p.channels);
  const int group = blockIdx.y;
  const T* const filters = static_cast<const T*>(p.filters) + group * p.filter_group;
  for (int i = threadIdx.x; i < p.channels * kFilters; i += kFewThreads) {
    const int channel = i / kFilters, filter = i % kFilters;
    weights[channel][filter] =
        filter < p.group_filters
            ? to_accumulate(filters[filter * p.filter_target + channel * p.filter_source])
            : 0.f;
  }
  __syncthreads();
  const int part = threadIdx.x / kFewUnits, lane = threadIdx.x % kFewUnits;
  const int unit = blockIdx.x * kFewUnits + lane;
  const bool inside = unit < p.units;
  int image = inside ? unit : 0;
  const int64_t pixel = p.by_plane_units.split(image) * int64_t{kValues};
  const T* const source = static_cast<const T*>(p.source) + image * p.source_n +
                          group * p.channels * p.source_c + pixel;
  float sums[kFilters][kValues] = {};
  const auto add = [&](const uint32_t (&words)[4], int channel) {
    float values[kValues];
#pragma unroll
    for (int i = 0; i < 4; ++i) widen(values, i * (kValues / 4), words[i], T{});
#pragma unroll
    for (int filter = 0; filter < kFilters; ++filter) {
      const float weight = weights[channel][filter];
#pragma unroll
      for (int v = 0; v < kValues; ++v) sums[filter][v] = fmaf(weight, values[v], sums[filter][v]);
    }
  };
  const auto load = [&](int channel, uint32_t (&words)[4]) {
    load_words<4>(words, source + channel * p.source_c, true);
  };
  int channel = part * p.part_channels;
  const int end = min(channel + p.part_channels, p.channels);
#pragma unroll 1
  for (; channel + kTogether <= end; channel += kTogether) {
    uint32_t loaded[kTogether][4];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) load(channel + i, loaded[i]);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) add(loaded[i], channel + i);
  }
#pragma unroll 1
  for (; channel < end; ++channel) {
    uint32_t words[4];
    load(channel, words);
    add(words, channel);
  }
  if (part > 0) {
#pragma unroll
    for (int i = 0; i < kFilters * kValues; ++i) {
      others[part - 1][i / kValues][i % kValues][lane] = sums[i / kValues][i % kValues];
    }
  }
  __syncthreads();
  if (part > 0 || !inside) return;

  T* const target =
      static_cast<T*>(p.target) + image * p.target_n + group * p.group_filters * p.target_c + pixel;
  const T* const bias = static_cast<const T*>(p.bias);
#pragma unroll
  for (int filter = 0; filter < kFilters; ++filter) {
    if (filter >= p.group_filters) break;
    const float start =
        bias == nullptr ? 0.f : to_accumulate(bias[group * p.group_filters + filter]);
    float totals[kValues];
#pragma unroll
    for (int v = 0; v < kValues; ++v) {
      totals[v] = sums[filter][v];
#pragma unroll
      for (int i = 0; i < kFewParts - 1; ++i) totals[v] += others[i][filter][v][lane];
      totals[v] += start;
    }
    all_at_least(totals, p.lowest);
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = narrow(totals, i * (kValues / 4), T{});
    store_global_16_bytes(target + filter * p.target_c, words);
  }
}

void launch_few_filters(const LaunchSite& site, const FewFiltersFit& fit,
                        const FewFiltersParams& p) {
  const Grid grid((p.units + kFewUnits - 1) / kFewUnits, fit.groups);
  const auto shared = static_cast<size_t>(fit.shared_bytes);
  const auto launch = [&]<typename T, int kFilters>() {
    launch_kernel<few_filters_kernel<T, kFilters>>(site, grid, kFewThreads, shared, p);
  };
  visit_device_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) > 4)
      return;
    else if (p.group_filters <= 2)
      launch.template operator()<T, 2>();
    else if (p.group_filters <= 4)
      launch.template operator()<T, 4>();
    else
      launch.template operator()<T, 8>();
  });
}

}  // namespace convx
