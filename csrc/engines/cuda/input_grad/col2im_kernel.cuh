// The kernels of cuda_col2im and their launch (col2im_geometry.h has the formula). The MMA kernel:
//
//                      columns: kernel row, kernel column, channel
//                     +----------------------------------+
//   64 pixels of a    | T                                |   m64nNk16, reduced over 64 filters a
//   row of dY         +----------------------------------+   stage
//
// A persistent block has the filters of a channel tile in shared memory, and two workers that share
// nothing else: a consumer warpgroup (col2im_consumer.cuh) and four loader warps
// (col2im_loader.cuh) each. Workers have equal ranges of steps.
//
// Shared memory: col2im_memory.cuh. For 16 channels, 128 filters and 3x3 taps in bf16, in KiB:
// filters 40, stages 2 x 32, T 2 x 38, ring 2 x 12, table 4.
//
// Limit: latency. A step of that layer is 640 cycles of MMAs and about 400 instructions of a
// consumer thread, one after the other. On an H200, each of the two workers takes about 5,900
// cycles for it.
#pragma once

#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "device/convert.cuh"
#include "device/dependent_launch.cuh"
#include "device/wgmma_descriptors.cuh"
#include "engines/cuda/input_grad/col2im_consumer.cuh"
#include "engines/cuda/input_grad/col2im_geometry.h"
#include "engines/cuda/input_grad/col2im_loader.cuh"
#include "kernels/around_mma.h"
#include "kernels/half_scales.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

inline constexpr int kCol2imConsumerRegisters = 144, kCol2imLoaderRegisters = 112;

// Fills the table of units.
__device__ __forceinline__ void list_units(const Col2imGeometry& g, uint32_t places) {
  for (int unit = static_cast<int>(threadIdx.x); unit < g.units; unit += kCol2imThreads) {
    const int quads = g.quads(), columns = g.unit_columns();
    const bool channels_adjacent = g.x_strides.c == 1;
    int column, quad;
    if (g.pairs_quads()) {
      const int groups = (columns + 3) / 4, index = unit / 8;
      const int group = channels_adjacent ? index / (quads / 2) : index % groups;
      const int pair = channels_adjacent ? index % (quads / 2) : index / groups;
      column = group * 4 + unit % 8 / 2, quad = pair * 2 + unit % 2;
    } else {
      column = channels_adjacent ? unit / quads : unit % columns;
      quad = channels_adjacent ? unit % quads : unit / columns;
    }
    // The first tap: column - s * dilation is a multiple of the stride.
    int s = 0;
    while (s < g.tap_step && (column - s * g.dilation_w) % g.stride_w != 0) ++s;
    const bool is_reached = s < g.tap_step && s < g.kernel_columns && column < columns;
    const int pixel = g.halo_points + (column - s * g.dilation_w) / g.stride_w;
    const int channel = quad * g.vector;
    const int offset = is_reached ? pixel * g.pitch + s * g.tile_channels + channel : 0;
    const int taps = is_reached ? (g.kernel_columns - 1 - s) / g.tap_step + 1 : 0;
    const auto target = static_cast<int>(column * g.x_strides.w + channel * g.x_strides.c);
    const uint32_t words[4] = {
        static_cast<uint32_t>(offset | taps << 16), static_cast<uint32_t>(target),
        static_cast<uint32_t>(column < columns ? column : 1 << 29), static_cast<uint32_t>(channel)};
    store_16_bytes(places + 16 * unit, words);
  }
}

template <TensorMath kMath, int kColumns, bool kColumnsAdjacent>
__global__ void __launch_bounds__(kCol2imThreads, 1)
    col2im_kernel(const __grid_constant__ Col2imParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kComponents = count_planes(kMath);
  extern __shared__ char unaligned[];
  const Col2imMemory memory(p.g, kComponents, unaligned);
  if (threadIdx.x == 0) memory.init_barriers(p.g);
  list_units(p.g, memory.places);
  const ChannelTile tile(p, static_cast<int>(blockIdx.x));
  wait_for_kernels_before();
  let_next_kernel_start();
  // Other blocks of a scaled form may be about to set the flag: the threads of a block agree on it.
  if (__syncthreads_or(must_return(p))) return;

  const int filter_bytes = kComponents * p.g.component_bytes();
  const char* const packed =
      static_cast<const char*>(p.packed) + int64_t{tile.index} * filter_bytes;
  for (int i = static_cast<int>(threadIdx.x) * 16; i < filter_bytes; i += kCol2imThreads * 16) {
    const uint4 unit = *reinterpret_cast<const uint4*>(packed + i);
    store_16_bytes(memory.filters + i, {unit.x, unit.y, unit.z, unit.w});
  }
  if constexpr (is_half(kMath)) {
    for (int i = static_cast<int>(threadIdx.x); i < p.g.tile_channels; i += kCol2imThreads) {
      const int channel = min(tile.channel + i, p.g.channels - 1);
      const Unscale factor(p.scales->source,
                           filter_scales(p.scales)[tile.group * p.g.channels + channel]);
      store_pair(memory.factors + 8 * i, factor.first, factor.second);
    }
  }
  fence_async_proxy();
  __syncthreads();

  // The same for all lanes, which lets the compiler keep descriptors in uniform registers.
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < 4 * kWorkers) {
    take_registers<kCol2imConsumerRegisters>();
    Col2imConsumer<kMath, kColumns, kColumnsAdjacent>(p, memory, tile, warp / 4).run();
  } else {
    give_registers<kCol2imLoaderRegisters>();
    Col2imLoader<kMath, kColumnsAdjacent>(p, memory, tile, warp / 4 - kWorkers,
                                          static_cast<int>(threadIdx.x) % 128)
        .run();
  }
#endif
}

// Packs filters in the order in which blocks keep them in shared memory:
//
//   packed [group][channel tile][component][chunk][atom][filter][32 columns]
//
// with rows of 64 bytes, swizzled. A thread packs 8 filters of a column.

inline constexpr int kCol2imPackThreads = 128;

template <TensorMath kMath>
__global__ void __launch_bounds__(kCol2imPackThreads)
    pack_col2im_kernel(const __grid_constant__ Col2imParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = typename TensorTypes<kMath>::Element;
  const Col2imGeometry& g = p.g;
  wait_for_kernels_before();
  let_next_kernel_start();
  if (must_return(p)) return;
  // Neighbouring threads have neighbouring columns.
  const int columns = g.chunks * g.atoms * kAtomColumns, units = g.depth_chunks * kDepthFilters / 8;
  const int index =
      static_cast<int>(blockIdx.x) * kCol2imPackThreads + static_cast<int>(threadIdx.x);
  const int column = index % columns, unit = index / columns % units,
            tile = index / columns / units;
  if (tile >= p.groups * g.channel_tiles) return;

  const int atom = column / kAtomColumns, chunk = atom / g.atoms;
  const int in_chunk = column - chunk * g.atoms * kAtomColumns;
  const int tap = in_chunk / g.tile_channels;
  const int r = chunk * g.chunk_rows + tap / g.kernel_columns, s = tap % g.kernel_columns;
  const int group = tile / g.channel_tiles;
  const int channel =
      (tile - group * g.channel_tiles) * g.tile_channels + in_chunk - tap * g.tile_channels;
  const bool exists = in_chunk < g.chunk_columns && r < g.kernel_rows && channel < g.channels;
  const T* const from = static_cast<const T*>(p.filters) + group * p.filter_group +
                        channel * p.filter_target + r * p.filter_r + s * p.filter_s;
  float values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int filter = unit * 8 + i;
    values[i] = exists && filter < g.filters ? to_accumulate(from[filter * p.filter_source]) : 0.f;
  }
  if constexpr (is_half(kMath)) {
    if (exists) scale_filter(p.scales, group * g.channels + channel, values);
  }
  const OperandWords<kMath> operands(values);
  char* const to = static_cast<char*>(const_cast<void*>(p.packed)) +
                   int64_t{tile} * count_planes(kMath) * g.component_bytes() +
                   atom * g.atom_bytes();
#pragma unroll
  for (int j = 0; j < count_planes(kMath); ++j) {
    const uint4& part = operands.part[j];
    const uint32_t words[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t place =
          swizzle((unit * 8 + i) * kAtomColumns * 2 + column % kAtomColumns * 2, kAtomColumns * 2);
      *reinterpret_cast<uint16_t*>(to + j * g.component_bytes() + place) =
          static_cast<uint16_t>(words[i / 2] >> i % 2 * 16);
    }
  }
#endif
}

// Launches the kernels of one call: measure_kernel (scaled fp16 only), pack_col2im_kernel,
// col2im_kernel.
template <TensorMath kMath>
void launch_col2im(const LaunchSite& site, const Col2imParams& params) {
  if constexpr (is_half(kMath)) measure(site, params);
  const Col2imGeometry& g = params.g;
  const int64_t threads = int64_t{params.groups} * g.channel_tiles * g.component_bytes() / 16;
  const int64_t blocks = (threads + kCol2imPackThreads - 1) / kCol2imPackThreads;
  launch_early<pack_col2im_kernel<packing_math(kMath)>>(site, blocks, kCol2imPackThreads, 0,
                                                        params);
  const Grid grid(g.blocks);
  const auto bytes = static_cast<size_t>(g.shared_bytes);
  launch_listed<col2im_columns_of<kMath>()>(site, g.columns, [&]<int kColumns>() {
    if (g.y_strides.c == 1 && g.y_strides.w != 1) {
      launch_early<col2im_kernel<kMath, kColumns, false>>(site, grid, kCol2imThreads, bytes,
                                                          params);
    } else {
      launch_early<col2im_kernel<kMath, kColumns, true>>(site, grid, kCol2imThreads, bytes, params);
    }
  });
}

}  // namespace convx
