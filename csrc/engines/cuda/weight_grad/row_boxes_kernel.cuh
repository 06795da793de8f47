// The weight gradient of 1x1 layers in NCHW, whose operands TMA brings as the MMAs read them.
//
//   dW[k][c] = sum over images and pixels of dY[k][pixel] * X[c][pixel]
//
// With columns adjacent in memory both operands are K-major as they lie there, and a single tap
// needs no shifted copies. A step is 128 bytes of a row, of every filter and channel of the block:
// 64 pixels of 16 bits, or 32 of float32, which TMA rounds to TF32. Rows are those of an image, or
// all of it where rows follow each other without gaps (flatten_images).
//
//                  channel set 0    channel set 1
//                 +---------------+---------------+
//   64 filters    | a warpgroup   | a warpgroup   |  kColumns channels each, m64nNk16 or, in TF32,
//                 +---------------+---------------+  m64nNk8; up to 4 warpgroups, as rows, columns
//   64 filters    | a warpgroup   | a warpgroup   |  or a square of tiles
//                 +---------------+---------------+
//
// Warps: up to 4 consumer warpgroups; one producer warp.
//
// Where the slices of a tile are the blocks of a cluster, those add their accumulators through
// shared memory and write dW (wgrad_store.cuh). Otherwise partial sums go to the workspace.
//
// Shared memory: barriers 1 KiB | stages * (filters + channels) * 128 bytes, a box of 64 rows each.
// After the last MMA, accumulators may be staged over these, and behind both is a table, as in
// wgrad_kernel.cuh.
//
// Large layers are limited by memory: one block has 256 filters and 64 channels, or another such
// rectangle, so that few blocks read the same values.
#pragma once

#include <type_traits>

#include "device/async_copy.cuh"
#include "device/dependent_launch.cuh"
#include "device/warp_roles.cuh"
#include "engines/cuda/weight_grad/rows_memory.cuh"
#include "engines/cuda/weight_grad/wgrad_element.cuh"
#include "engines/cuda/weight_grad/wgrad_store.cuh"
#include "kernels/half_scales.cuh"

namespace convx {

inline constexpr int kBoxThreads = 128 * kBoxWarpgroups + 32;

// What the MMAs multiply.
template <OperandForm kForm>
using box_value_t = std::conditional_t<kForm == OperandForm::kTf32, Tf32, element_t<kForm>>;

// Addresses in shared memory. A stage is a step: the rows of all filters, then of all channels.
struct BoxesMemory : StoreMemory {
  static constexpr uint32_t kBoxBytes = kBoxRows * kBoxRowBytes;
  uint32_t full, empty;  // barriers, one per stage
  uint32_t stages;
  uint32_t gradient_bytes, stage_bytes;

  __device__ BoxesMemory(const WgradGeometry& g, char* memory)
      : StoreMemory(g, align_start(memory), memory) {
    full = align_start(memory);
    empty = full + 8 * g.stages;
    stages = full + 1024;
    gradient_bytes = g.block_filter_tiles * kTileFilters * kBoxRowBytes;
    stage_bytes = gradient_bytes + g.row_tiles.block_channels * kBoxRowBytes;
  }

  __device__ void init_barriers(const WgradGeometry& g, int warpgroups) const {
    for (int i = 0; i < g.stages; ++i) {
      init_barrier(full + 8 * i, 1);
      init_barrier(empty + 8 * i, 4 * warpgroups);  // a lane of each consumer warp
    }
    fence_barrier_init();
  }
};

// Copies the steps of a slice. One lane runs it.
template <int kStep>  // pixels
__device__ __forceinline__ void copy_steps(const WgradGeometry& g, const WgradMaps& maps,
                                           const StageStep& step, const BoxesMemory& memory,
                                           const WgradWork& work) {
  const RowTiles& t = g.row_tiles;
  int image = work.first_stage;
  int segment = t.by_segments.split(image);
  int row = t.by_run_bands.split(image);
  const int first_filter = work.tile.filter_tile * kTileFilters;
  const int first_channel = work.tile.channel_tile * g.atom_channels;
  const int filters = g.block_filter_tiles * kTileFilters;
  RingCursor stage;
#pragma unroll 1
  for (int i = 0; i < work.stages; ++i) {
    const uint32_t full = memory.full + 8 * stage.slot;
    uint32_t to = memory.stages + stage.slot * memory.stage_bytes;
    wait_barrier(memory.empty + 8 * stage.slot, stage.parity ^ 1);
    arrive_expecting(full, memory.stage_bytes);
    const int column = segment * kStep;
#pragma unroll 1
    for (int filter = 0; filter < filters; filter += kBoxRows, to += BoxesMemory::kBoxBytes) {
      box_copy(to, &maps.gradient, column, row, first_filter + filter, image, full);
    }
#pragma unroll 1
    for (int c = 0; c < t.block_channels; c += kBoxRows, to += BoxesMemory::kBoxBytes) {
      box_copy(to, &maps.input, column, row * g.stride_h - g.pad_top, first_channel + c, image,
               full);
    }
    stage.advance(g.stages);
    segment += step.column, row += step.row, image += step.image;
    if (segment >= t.segments) segment -= t.segments, ++row;
    if (row >= t.run_bands) row -= t.run_bands, ++image;
  }
}

// Multiplies the steps of a slice, and stores or stages a warpgroup's accumulators. The MMAs of a
// step run while the warpgroup waits for the next one. Slices of blocks that write dW are no longer
// than flush_stages.
template <typename Value, int kColumns>
__device__ __forceinline__ void multiply_steps(const WgradGeometry& g, const WgradCall& call,
                                               const BoxesMemory& memory, const WgradWork& work,
                                               int warpgroup) {
  const RowConsumerIndex index(g, warpgroup, 1);
  const uint32_t gradient =
      lower_descriptor(memory.stages + index.filter_tile * kTileFilters * kBoxRowBytes);
  const uint32_t input = lower_descriptor(memory.stages + memory.gradient_bytes +
                                          index.channel_set * kColumns * kBoxRowBytes);
  float* const partials = find_partials<kColumns>(g, call, work, index, 0);
  const auto release = [&](int slot) {
    if (threadIdx.x % 32 == 0) arrive(memory.empty + 8 * slot);
  };
  WgmmaSums<kColumns> sums;
  RingCursor stage;
  for (int first = 0; first < work.stages; first += g.flush_stages) {
    const int steps = min(g.flush_stages, work.stages - first);
    int previous = 0;
#pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const uint32_t offset = stage.slot * (memory.stage_bytes / 16);
      wait_barrier(memory.full + 8 * stage.slot, stage.parity);
      fence_wgmma();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Wgmma<Value, kColumns>::multiply(
            sums, join_descriptor(gradient + offset + 2 * k, upper_descriptor(kBoxRowBytes)),
            join_descriptor(input + offset + 2 * k, upper_descriptor(kBoxRowBytes)),
            i > 0 || k > 0);
      }
      commit_wgmma();
      wait_wgmma<1>();
      if (i > 0) release(previous);
      previous = stage.slot;
      stage.advance(g.stages);
    }
    wait_wgmma<0>();
    release(previous);
    if (g.writes_result) {
      // No MMA of the block reads the operands any more.
      wait_at_barrier(1, static_cast<int>(blockDim.x) - 32);
      const int matrix = index.channel_set * g.block_filter_tiles + index.filter_tile;
      stage_sums(g, memory, sums, matrix * 128 + static_cast<int>(threadIdx.x) % 128);
    } else {
      store_partials(sums, partials, first > 0);
    }
  }
}

template <OperandForm kForm, int kColumns>
__global__ void __launch_bounds__(kBoxThreads, 1)
    row_boxes_kernel(const __grid_constant__ WgradGeometry g,
                     const __grid_constant__ WgradCall call,
                     const __grid_constant__ WgradMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kStep = kBoxRowBytes / static_cast<int>(sizeof(element_t<kForm>));
  extern __shared__ char unaligned[];
  const BoxesMemory memory(g, unaligned);
  const int warpgroups = static_cast<int>(blockDim.x) / 128;
  if (threadIdx.x == 0) memory.init_barriers(g, warpgroups);
  const WgradWork work(g, call, find_first_set(g, static_cast<int>(blockIdx.x)));
  // The same for all lanes, which lets the compiler keep descriptors in uniform registers.
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
  if (g.writes_result && !work.tile.is_empty && warp < 4 * warpgroups) {
    ResultStore<kForm>(g, call, memory, work)
        .list_elements(static_cast<int>(threadIdx.x), 128 * warpgroups);
  }
  wait_for_kernels_before();
  let_next_kernel_start();
  __syncthreads();
  if (must_return(call) || work.tile.is_empty) return;
  if (warp < 4 * warpgroups) {
    multiply_steps<box_value_t<kForm>, kColumns>(g, call, memory, work, warp / 4);
    // The producer has returned or will, and no barrier waits for it.
    if (g.writes_result) ResultStore<kForm>(g, call, memory, work).run_sets(128 * warpgroups);
  } else if (elect_lane()) {
    copy_steps<kStep>(g, maps, call.step, memory, work);
  }
#endif
}

}  // namespace convx
