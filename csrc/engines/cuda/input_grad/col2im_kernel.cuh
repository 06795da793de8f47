// The MMA kernel of cuda_col2im (col2im_geometry.h has the formula).
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

#include "device/dependent_launch.cuh"
#include "engines/cuda/input_grad/col2im_consumer.cuh"
#include "engines/cuda/input_grad/col2im_loader.cuh"
#include "kernels/run_flag.cuh"

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

}  // namespace convx
