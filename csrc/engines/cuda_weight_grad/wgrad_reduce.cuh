// Adds the partial sums of all split-K slices in a fixed order, and writes dW.
//
// Threads take the elements of dW in the order of its memory, so that stores are coalesced; the
// partial sums that a block reads lie in few rows of a tile, so that L1 serves what a load leaves
// over of a line. A block of 8 warps adds each element with 1 to 8 lanes, a warp apart: lane i adds
// slices i, i + lanes, ..., and the first adds their results in order.
//
// Shared memory: where each tap's accumulators are, 4 KiB; the lanes' sums, 1 KiB.
#pragma once

#include <algorithm>

#include "cuda/launch.h"
#include "device/convert.cuh"
#include "device/dependent_launch.cuh"
#include "device/tensor_formats.cuh"
#include "engines/cuda_weight_grad/wgrad_call.h"
#include "engines/cuda_weight_grad/wgrad_forms.h"
#include "engines/cuda_weight_grad/wgrad_geometry.h"
#include "engines/cuda_weight_grad/wgrad_tile.cuh"
#include "engines/gate.cuh"
#include "engines/half_scales.cuh"

namespace convx {

inline constexpr int kReduceThreads = 256;
inline constexpr int kReduceSharedBytes = kMaxWgradTaps * sizeof(int) + kReduceThreads * 8;
inline constexpr float kLargestFinite = 0x1.fffffep127f;

// One element of dW. Divisions are by constants of the geometry: a plain one takes as long as all
// else that the kernel does for an element.
struct WgradElement {
  int filter, channel, r, s;  // channel: of all groups
  int own_channel;            // of the group

  // index: in the order of dense memory, channels_last or contiguous.
  __device__ WgradElement(const WgradGeometry& g, int index) {
    if (g.w_strides.c == 1 && g.w_strides.w != 1) {
      own_channel = g.by_group_channels.split(index);
      s = g.by_kernel_columns.split(index);
      r = g.by_kernel_rows.split(index);
    } else {
      s = g.by_kernel_columns.split(index);
      r = g.by_kernel_rows.split(index);
      own_channel = g.by_group_channels.split(index);
    }
    filter = index;
    channel = g.by_group_filters.divide(filter) * g.group_channels + own_channel;
  }

  __device__ int64_t offset(const WgradGeometry& g) const {
    return filter * g.w_strides.n + own_channel * g.w_strides.c + r * g.w_strides.h +
           s * g.w_strides.w;
  }

  // Where the element's partial sum lies within a slice. places: see list_tap_places.
  __device__ int64_t find_partial(const WgradGeometry& g, const int* places) const {
    const int place = places[g.folds_columns ? r : r * g.kernel_columns + s];
    const int atom = place & 31, group_slot = place >> 5 & 3, group_block = place >> 7;
    const int packed = g.folds_columns ? s * g.channels + channel : channel;
    int filter_block = filter / unsigned{kTileFilters};
    const int filter_tile = g.by_block_filter_tiles.split(filter_block);
    int channel_block = (packed >> g.atom_bits) - find_first_tile(g, filter_block);
    int column = (packed & (g.atom_channels - 1)) + (atom << g.atom_bits);
    if (g.atom_axis == AtomAxis::kChannels) {
      column += g.by_block_channel_tiles.split(channel_block) << g.atom_bits;
    }
    const int block =
        (filter_block * g.channel_blocks + channel_block) * g.group_blocks + group_block;
    const int consumer = filter_tile * g.block_tap_groups + group_slot;
    const int row = filter % unsigned{kTileFilters};
    return (int64_t{block} * g.consumers() + consumer) * kTileFilters * g.columns +
           row * g.columns + column;
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

// For each tap: its atom, its group's slot in a block, and the block of groups.
__device__ __forceinline__ void list_tap_places(const WgradGeometry& g, int* places) {
  for (int block = 0; block < g.group_blocks; ++block) {
    const int first = g.block_groups[block], end = g.block_groups[block + 1];
    for (int index = first + static_cast<int>(threadIdx.x); index < end; index += blockDim.x) {
      const TapGroup& group = g.groups[index];
      for (int atom = 0; atom < group.taps; ++atom) {
        const int r = group.r + atom * g.atom_r, s = group.s + atom * g.atom_s;
        places[g.folds_columns ? r : r * g.kernel_columns + s] =
            atom | (index - first) << 5 | block << 7;
      }
    }
  }
}

// lanes: that add one element, a power of two up to 8.
template <typename T, OperandForm kForm>
__global__ void __launch_bounds__(kReduceThreads)
    wgrad_reduce_kernel(const __grid_constant__ WgradGeometry g,
                        const __grid_constant__ WgradCall call, int elements, int lanes) {
  extern __shared__ char memory[];
  auto* const places = reinterpret_cast<int*>(memory);
  auto* const shares = reinterpret_cast<double*>(memory + kMaxWgradTaps * sizeof(int));
  auto* const sums = reinterpret_cast<float*>(shares);
  list_tap_places(g, places);
  wait_for_kernels_before();
  let_next_kernel_start();
  if (is_shut(call)) return;
  __syncthreads();
  Unscale unscale;
  if constexpr (is_scaled(kForm)) {
    unscale = Unscale(call.scales->source, filter_scales(call.scales)[0]);
  } else if constexpr (count_components(kForm) > 1) {
    unscale.first = kSplitUnscale;
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int together = kReduceThreads / lanes;  // elements of a block at a time
  const int lane = thread / together, own = thread - lane * together;
  const int64_t slice_stride = g.partial_values();

  for (int64_t first = int64_t{blockIdx.x} * together; first < elements;
       first += int64_t{gridDim.x} * together) {
    const bool exists = first + own < elements;
    const WgradElement element(g, static_cast<int>(exists ? first + own : first));
    const float* const partial = call.partials + element.find_partial(g, places);
    float sum = 0;
#pragma unroll 4
    for (int slice = lane; slice < g.slices; slice += lanes) sum += partial[slice * slice_stride];
    if (lanes > 1) {
      sums[thread] = sum;
      __syncthreads();
      for (int i = 1; lane == 0 && i < lanes; ++i) sum += sums[i * together + own];
      __syncthreads();
    }
    const bool is_mine = lane == 0 && exists;
    const float value = sum * unscale.first * unscale.second;
    if (is_mine) static_cast<T*>(call.w)[element.offset(g)] = round_to<T>(value);
    const bool is_wrong = is_mine && !(fabsf(value) <= kLargestFinite);
    if (!__syncthreads_or(is_wrong)) continue;

    // Sums that are not finite are computed again, by the definition: MMAs also multiply gaps and
    // borders, where 0 * Inf is NaN, and split operands of large values overflow.
    for (int i = 0; i < together && first + i < elements; ++i) {
      if (!__syncthreads_or(is_wrong && own == i)) continue;
      const WgradElement wrong(g, static_cast<int>(first + i));
      shares[thread] = wrong.sum_pixels<T>(g, call, thread, kReduceThreads);
      __syncthreads();
      if (thread == 0) {
        double total = 0;
        for (int j = 0; j < kReduceThreads; ++j) total += shares[j];
        static_cast<T*>(call.w)[wrong.offset(g)] = round_to<T>(static_cast<float>(total));
      }
      __syncthreads();
    }
  }
}

// Starts the reduction of a form's partial sums.
template <typename T, OperandForm kForm>
void launch_wgrad_reduce(const LaunchSite& site, const WgradGeometry& g, const WgradCall& call) {
  const int elements = g.filters * g.group_channels * g.kernel_rows * g.kernel_columns;
  // As many lanes as keep the GPU busy where elements are few.
  int lanes = 1;
  while (lanes < 8 && 2 * lanes <= g.slices && int64_t{elements} * lanes < kReduceParallel) {
    lanes *= 2;
  }
  const int64_t blocks = (int64_t{elements} * lanes + kReduceThreads - 1) / kReduceThreads;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(blocks, kReduceBlocks)));
  launch_early<wgrad_reduce_kernel<T, kForm>>(site, grid, kReduceThreads, kReduceSharedBytes, g,
                                              call, elements, lanes);
}

}  // namespace convx
