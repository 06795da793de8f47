// Packs filters that TMA cannot read in place: packed[filter][tap][packed_channels], taps in the
// order of the kernel's rows and columns.
#pragma once

#include "core/arithmetic.h"
#include "cuda/launch.h"
#include "device/convert.cuh"
#include "device/dependent_launch.cuh"
#include "engines/cuda_boxes/boxes_params.h"
#include "engines/tensor_types.cuh"

namespace convx {

inline constexpr int kBoxPackThreads = 256;
inline constexpr int kBoxPackChannels = 32;  // channels per block

// A block packs pack_filters filters by 32 channels, pack_taps taps at a time. Values pass through
// shared memory, [filter][tap][channel], so that global loads and stores are both coalesced.
template <TensorMath kMath>
__global__ void __launch_bounds__(kBoxPackThreads)
    pack_boxes_kernel(const __grid_constant__ BoxesParams p) {
  using Element = typename TensorTypes<kMath>::Element;
  extern __shared__ __align__(16) char memory[];
  auto* const staged = reinterpret_cast<float (*)[kBoxPackChannels + 1]>(memory);
  wait_for_kernels_before();
  let_next_kernel_start();
  const int taps = p.kernel_rows * p.kernel_columns;
  const int channel_blocks = (p.group_sources + kBoxPackChannels - 1) / kBoxPackChannels;
  const int block = blockIdx.x;
  const int filter0 = block / channel_blocks * p.pack_filters;
  const int channel0 = block % channel_blocks * kBoxPackChannels;
  const bool taps_together = p.filter_s <= p.filter_source;
  const bool filter_by_filter = p.filter_source <= p.filter_target;
  const int values = p.pack_filters * p.pack_taps * kBoxPackChannels;
  auto* const packed = static_cast<Element*>(const_cast<void*>(p.packed));
  for (int tap0 = 0; tap0 < taps; tap0 += p.pack_taps) {
#pragma unroll 4
    for (int i = threadIdx.x; i < values; i += kBoxPackThreads) {
      int filter = i, channel, tap;
      if (!taps_together) {
        channel = filter % kBoxPackChannels;
        filter /= kBoxPackChannels;
        tap = p.by_pack_taps.split(filter);
      } else {
        tap = p.by_pack_taps.split(filter);
        if (filter_by_filter) {
          channel = filter % kBoxPackChannels;
          filter /= kBoxPackChannels;
        } else {
          channel = filter;
          filter = p.by_pack_filters.split(channel);
        }
      }
      int r = tap0 + tap;
      const int s = p.by_kernel_columns.split(r);
      const bool inside = filter0 + filter < p.group_targets &&
                          channel0 + channel < p.group_sources && tap0 + tap < taps;
      const int64_t at = (filter0 + filter) * p.filter_target +
                         (channel0 + channel) * p.filter_source + r * p.filter_r + s * p.filter_s;
      if (inside) {
        staged[filter * p.pack_taps + tap][channel] =
            to_accumulate(static_cast<const Element*>(p.filters)[at]);
      }
    }
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < values; i += kBoxPackThreads) {
      const int channel = i % kBoxPackChannels, row = i / kBoxPackChannels;
      int filter = row;
      const int tap = p.by_pack_taps.split(filter);
      if (filter0 + filter >= p.group_targets || channel0 + channel >= p.group_sources ||
          tap0 + tap >= taps) {
        continue;
      }
      const float value = staged[row][channel];
      const int64_t line = static_cast<int64_t>(filter0 + filter) * taps + tap0 + tap;
      packed[line * p.packed_channels + channel0 + channel] = round_to<Element>(value);
    }
    __syncthreads();
  }
}

template <TensorMath kMath>
void pack_boxes(const LaunchSite& site, const BoxesParams& p) {
  const int blocks =
      ceil_div(p.group_targets, p.pack_filters) * ceil_div(p.group_sources, kBoxPackChannels);
  launch_early<pack_boxes_kernel<kMath>>(
      site, dim3(static_cast<unsigned>(blocks)), kBoxPackThreads,
      p.pack_filters * p.pack_taps * (kBoxPackChannels + 1) * sizeof(float), p);
}

}  // namespace convx
