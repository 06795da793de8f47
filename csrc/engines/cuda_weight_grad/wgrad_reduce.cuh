// Adds the partial sums of all split-K slices in a fixed order, and writes dW.
//
// A block adds 32 units of 4 values: warp i adds slices i, i + 8, ..., and the first warp adds the
// eight results in order. Latency limits the kernel: partial sums are a few MB, in L2.
#pragma once

#include "cuda/launch.h"
#include "device/convert.cuh"
#include "device/dependent_launch.cuh"
#include "device/tensor_formats.cuh"
#include "engines/cuda_weight_grad/wgrad_call.h"
#include "engines/cuda_weight_grad/wgrad_geometry.h"
#include "engines/cuda_weight_grad/wgrad_tile.cuh"
#include "engines/gate.cuh"
#include "engines/half_scales.cuh"

namespace convx {

inline constexpr int kReduceWarps = 8;
inline constexpr float kLargestFinite = 0x1.fffffep127f;

// One element of dW, or none where a column of a tile stands for nothing.
struct GradientElement {
  int filter, channel, r, s;
  bool exists;

  // row and column: of a warpgroup's tile.
  __device__ GradientElement(const WgradGeometry& g, const WgradTile& tile, int warpgroup, int row,
                             int column) {
    const int index = tile.first_group + warpgroup % g.block_tap_groups;
    exists = index < tile.last_group;
    const TapGroup& group = g.groups[exists ? index : tile.first_group];
    const int atom = column / g.atom_channels;
    const bool by_channels = g.atom_axis == AtomAxis::kChannels;
    filter = (tile.filter_tile + warpgroup / g.block_tap_groups) * kTileFilters + row;
    channel = (tile.channel_tile + (by_channels ? atom : 0)) * g.atom_channels + column -
              atom * g.atom_channels;
    r = group.r + (by_channels ? 0 : atom * g.atom_r);
    s = group.s + (by_channels ? 0 : atom * g.atom_s);
    exists = exists && (by_channels || atom < group.taps) && filter < g.filters &&
             channel < g.packed_channels;
    if (g.folds_columns) {
      s = channel / g.channels;
      channel -= s * g.channels;
    }
    exists = exists && filter / g.group_filters == channel / g.group_channels;
  }

  __device__ int64_t offset(const WgradGeometry& g) const {
    const int own = channel - channel / g.group_channels * g.group_channels;
    return filter * g.w_strides.n + own * g.w_strides.c + r * g.w_strides.h + s * g.w_strides.w;
  }

  // This thread's share of the definition's sum: every step-th output pixel from `first` on.
  template <typename T>
  __device__ double sum_pixels(const WgradGeometry& g, const WgradCall& call, int64_t first,
                               int step) const {
    const T* const x = static_cast<const T*>(call.x) + channel * g.x_strides.c;
    const T* const y = static_cast<const T*>(call.y) + filter * g.y_strides.c;
    const int64_t pixels = int64_t{g.images} * g.out_height * g.out_width;
    double sum = 0;
    for (int64_t pixel = first; pixel < pixels; pixel += step) {
      const int64_t line = pixel / g.out_width, n = line / g.out_height;
      const int q = static_cast<int>(pixel - line * g.out_width);
      const int p = static_cast<int>(line - n * g.out_height);
      const int row = p * g.stride_h + r * g.dilation_h - g.pad_top;
      const int column = q * g.stride_w + s * g.dilation_w - g.pad_left;
      if (row < 0 || row >= g.height || column < 0 || column >= g.width) continue;
      const T input = x[n * g.x_strides.n + row * g.x_strides.h + column * g.x_strides.w];
      const T gradient = y[n * g.y_strides.n + p * g.y_strides.h + q * g.y_strides.w];
      sum += double{to_accumulate(input)} * double{to_accumulate(gradient)};
    }
    return sum;
  }
};

template <typename T, OperandForm kForm>
__global__ void __launch_bounds__(32 * kReduceWarps)
    wgrad_reduce_kernel(const __grid_constant__ WgradGeometry g,
                        const __grid_constant__ WgradCall call) {
  wait_for_kernels_before();
  let_next_kernel_start();
  if (is_shut(call)) return;
  extern __shared__ char memory[];
  auto* const sums = reinterpret_cast<float4*>(memory);  // [warp][lane]
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t units = g.partial_units();
  const int64_t unit = int64_t{blockIdx.x} * 32 + lane;

  const int units_per_consumer = g.columns / 8 * 128;
  const int consumer = static_cast<int>(unit / units_per_consumer);
  const WgradTile tile(g, consumer / g.consumers());
  const int warpgroup = consumer % g.consumers();
  const int in_tile = static_cast<int>(unit - int64_t{consumer} * units_per_consumer);
  const int thread = in_tile % 128;
  const int row = thread / 32 * 16 + thread % 32 / 4;
  const int column = in_tile / 128 * 8 + thread % 4 * 2;
  // All units of a block belong to one warpgroup's tile, so this is the same for all threads.
  if (tile.is_empty || tile.first_group + warpgroup % g.block_tap_groups >= tile.last_group) return;

  float4 sum{0, 0, 0, 0};
  const auto* const partials = reinterpret_cast<const float4*>(call.partials);
#pragma unroll 4
  for (int slice = warp; slice < g.slices; slice += kReduceWarps) {
    const float4 part = partials[slice * units + unit];
    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
  }
  sums[warp * 32 + lane] = sum;
  __syncthreads();
  bool is_wrong[4] = {};
  if (warp == 0) {
#pragma unroll
    for (int i = 1; i < kReduceWarps; ++i) {
      const float4 part = sums[i * 32 + lane];
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    Unscale unscale;
    if constexpr (is_scaled(kForm)) {
      unscale = Unscale(call.scales->source, filter_scales(call.scales)[0]);
    } else if constexpr (count_components(kForm) > 1) {
      unscale.first = kSplitUnscale;
    }
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const GradientElement element(g, tile, warpgroup, row + i / 2 * 8, column + i % 2);
      if (!element.exists) continue;
      const float value = values[i] * unscale.first * unscale.second;
      is_wrong[i] = !(fabsf(value) <= kLargestFinite);
      static_cast<T*>(call.w)[element.offset(g)] = round_to<T>(value);
    }
  }
  const bool any_wrong = is_wrong[0] || is_wrong[1] || is_wrong[2] || is_wrong[3];
  if (!__syncthreads_or(any_wrong)) return;

  // Sums that are not finite are computed again, by the definition: MMAs also multiply gaps and
  // borders, where 0 * Inf is NaN, and split operands of large values overflow.
  auto* const wrong = reinterpret_cast<int*>(memory);  // [lane], a bit per value
  auto* const shares = reinterpret_cast<double*>(memory + 32 * sizeof(int));
  if (warp == 0) wrong[lane] = is_wrong[0] | is_wrong[1] << 1 | is_wrong[2] << 2 | is_wrong[3] << 3;
  __syncthreads();
  for (int i = 0; i < 4 * 32; ++i) {
    const int owner = i / 4, value = i % 4;
    if ((wrong[owner] >> value & 1) == 0) continue;
    const int distance = owner - lane;  // the owner's row and column follow from this thread's
    const int owner_thread = (in_tile + distance) % 128;
    const GradientElement element(
        g, tile, warpgroup, owner_thread / 32 * 16 + owner_thread % 32 / 4 + value / 2 * 8,
        (in_tile + distance) / 128 * 8 + owner_thread % 4 * 2 + value % 2);
    shares[threadIdx.x] =
        element.sum_pixels<T>(g, call, static_cast<int>(threadIdx.x), 32 * kReduceWarps);
    __syncthreads();
    if (threadIdx.x == 0) {
      double total = 0;
      for (int j = 0; j < 32 * kReduceWarps; ++j) total += shares[j];
      static_cast<T*>(call.w)[element.offset(g)] = round_to<T>(static_cast<float>(total));
    }
    __syncthreads();
  }
}

// Starts the reduction of a form's partial sums.
template <typename T, OperandForm kForm>
void launch_wgrad_reduce(const LaunchSite& site, const WgradGeometry& geometry,
                         const WgradCall& call) {
  constexpr int kThreads = 32 * kReduceWarps;
  const dim3 grid(static_cast<unsigned>(geometry.partial_units() / 32));
  launch_early<wgrad_reduce_kernel<T, kForm>>(site, grid, kThreads, kThreads * sizeof(float4),
                                              geometry, call);
}

}  // namespace convx
