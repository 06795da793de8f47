// The weight gradient on Hopper's tensor cores (wgrad_geometry.h has the formula).
//
//                     columns: atoms of taps or channels
//                    +-------+-------+-------+
//   64 filters       | tap 0 | tap 1 | tap 2 |   one consumer warpgroup: the accumulators of a tap
//                    +-------+-------+-------+   group, m64nNk16
//   reduced over positions, 64 a stage
//
// A block has up to three consumer warpgroups, tiles of filters times tap groups, and a producer
// warp. All share one ring of X' in shared memory: every stage of it is copied once per block and
// read by all taps, because a tap is a shift of the operand's start by whole rows. The first stages
// of the ring are mirrored behind its end, so that no MMA's operand wraps.
//
// Both operands are MN-major: rows of positions, columns of channels. A stage of dY' is 64 rows of
// 128 bytes; atoms of B lie atom_shift rows apart (overlapping taps), or a ring apart (channels).
//
// Shared memory: barriers 1 KiB | dY' stages * filter tiles * components * 8 KiB
//                | X' (ring + mirrored stages) * channel tiles * components * 64 * row_bytes.
//
// Accumulation. The tensor cores truncate when they add to an accumulator, an error that grows with
// the chain. Plain forms add their accumulators to the slice's partial sums in memory every
// flush_stages stages. Split forms, which must be as exact as float32, empty them into a second set
// of registers after every stage. The partial sums of all slices are added by
// wgrad_reduce.cuh, in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "device/dependent_launch.cuh"
#include "device/mbarrier.cuh"
#include "device/shared_memory.cuh"
#include "device/tensor_formats.cuh"
#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda_weight_grad/wgrad_call.h"
#include "engines/cuda_weight_grad/wgrad_fit.h"
#include "engines/cuda_weight_grad/wgrad_geometry.h"
#include "engines/cuda_weight_grad/wgrad_tile.cuh"
#include "engines/gate.cuh"

namespace convx {

// What a block multiplies: a tile, over the positions of a split-K slice.
struct WgradWork {
  WgradTile tile;
  int tile_index, slice;
  int64_t first_stage;  // of the round
  int stages;

  __device__ WgradWork(const WgradGeometry& g, const WgradCall& call, int index)
      : tile(g, index % g.tiles()), tile_index(index % g.tiles()), slice(index / g.tiles()) {
    first_stage = call.stages * slice / g.slices;
    stages = static_cast<int>(call.stages * (slice + 1) / g.slices - first_stage);
  }
};

// Addresses in shared memory.
struct WgradMemory {
  uint32_t full, empty;  // barriers, one per stage
  uint32_t gradient, input;
  uint32_t gradient_stage_bytes;  // all filter tiles and components
  uint32_t input_stage_bytes;     // one channel tile, one component
  uint32_t ring_bytes;            // the same, mirrored stages included

  __device__ WgradMemory(const WgradGeometry& g, int components, const void* memory) {
    const uint32_t start = (shared_address(memory) + 1023) / 1024 * 1024;
    full = start, empty = start + 8 * g.stages;
    gradient = start + 1024;
    gradient_stage_bytes = components * g.block_filter_tiles * kStagePositions * kGradientRowBytes;
    input = gradient + g.stages * gradient_stage_bytes;
    input_stage_bytes = kStagePositions * g.row_bytes;
    ring_bytes = (g.ring_stages + g.mirrored_stages) * input_stage_bytes;
  }

  __device__ void init_barriers(const WgradGeometry& g) const {
    for (int i = 0; i < g.stages; ++i) {
      init_barrier(full + 8 * i, 1);
      init_barrier(empty + 8 * i, 4 * g.consumers());  // a lane of each consumer warp
    }
    fence_barrier_init();
  }
};

// The producer: one lane copies the stages of dY' and of X', as far ahead as there is room.
template <int kComponents>
class WgradProducer {
 public:
  __device__ WgradProducer(const WgradGeometry& g, const WgradCall& call, const WgradMemory& memory,
                           const WgradWork& work)
      : g_(g), memory_(memory), work_(work) {
    const TapGroup& group = g.groups[work.tile.first_group];
    const int64_t base = work.first_stage * kStagePositions + group.shift / 8 * 8;
    const int64_t input_tile = int64_t{group.residue} * g.channel_tiles + work.tile.channel_tile;
    input_tile_bytes_ = g.input_rows * g.row_bytes;
    input_component_bytes_ = int64_t{g.residue_count} * g.channel_tiles * input_tile_bytes_;
    input_ = call.packed_x + input_tile * input_tile_bytes_ + base * g.row_bytes;
    gradient_tile_bytes_ = g.gradient_rows * kGradientRowBytes;
    gradient_component_bytes_ = g.filter_tiles * gradient_tile_bytes_;
    gradient_ = call.packed_y + work.tile.filter_tile * gradient_tile_bytes_ +
                work.first_stage * kStagePositions * kGradientRowBytes;
  }

  __device__ void run() {
    RingCursor stage;
    for (int i = 0; i < work_.stages; ++i, stage.advance(g_.stages)) {
      wait_barrier(memory_.empty + 8 * stage.slot, stage.parity ^ 1);
      const uint32_t barrier = memory_.full + 8 * stage.slot;
      // The first stage brings the halo along.
      const int inputs = i == 0 ? g_.halo_stages + 1 : 1;
      arrive_expecting(barrier, memory_.gradient_stage_bytes + count_input_bytes(inputs));
      copy_gradient(i, stage.slot, barrier);
      for (int j = 0; j < inputs; ++j) copy_input(barrier);
    }
  }

 private:
  __device__ uint32_t count_input_bytes(int inputs) const {
    uint32_t copies = 0;
    for (int j = 0, slot = slot_; j < inputs; ++j) {
      copies += slot < g_.mirrored_stages ? 2 : 1;
      slot = slot + 1 == g_.ring_stages ? 0 : slot + 1;
    }
    return copies * kComponents * g_.block_channel_tiles * memory_.input_stage_bytes;
  }

  __device__ void copy_gradient(int stage, int slot, uint32_t barrier) const {
    constexpr uint32_t kBytes = kStagePositions * kGradientRowBytes;
    uint32_t to = memory_.gradient + slot * memory_.gradient_stage_bytes;
    for (int component = 0; component < kComponents; ++component) {
      for (int tile = 0; tile < g_.block_filter_tiles; ++tile, to += kBytes) {
        const char* const from = gradient_ + component * gradient_component_bytes_ +
                                 tile * gradient_tile_bytes_ + int64_t{stage} * kBytes;
        bulk_copy(to, from, kBytes, barrier);
      }
    }
  }

  // The next stage of X', of all components and channel tiles.
  __device__ void copy_input(uint32_t barrier) {
    const uint32_t bytes = memory_.input_stage_bytes;
    uint32_t to = memory_.input + slot_ * bytes;
    for (int component = 0; component < kComponents; ++component) {
      for (int tile = 0; tile < g_.block_channel_tiles; ++tile, to += memory_.ring_bytes) {
        const char* const from =
            input_ + component * input_component_bytes_ + tile * input_tile_bytes_;
        bulk_copy(to, from, bytes, barrier);
        if (slot_ < g_.mirrored_stages) {
          bulk_copy(to + g_.ring_stages * bytes, from, bytes, barrier);
        }
      }
    }
    input_ += bytes;
    if (++slot_ == g_.ring_stages) slot_ = 0;
  }

  const WgradGeometry& g_;
  const WgradMemory& memory_;
  const WgradWork& work_;
  const char *input_, *gradient_;
  int64_t input_tile_bytes_, input_component_bytes_;
  int64_t gradient_tile_bytes_, gradient_component_bytes_;
  int slot_ = 0;  // of the ring, that the next stage of X' goes to
};

// A consumer warpgroup.
template <typename Value, int kComponents, int kColumns>
class WgradConsumer {
  static constexpr bool kIsSplit = kComponents > 1;
  // float16 components: the second is kHalfLowScale times as large (tensor_formats.cuh).
  static constexpr bool kHasLowScale = kIsSplit && std::is_same_v<Value, __half>;
  using Mma = Wgmma<MnMajor<Value>, kColumns>;

 public:
  __device__ WgradConsumer(const WgradGeometry& g, const WgradCall& call, const WgradMemory& memory,
                           const WgradWork& work, int warpgroup)
      : g_(g), memory_(memory), work_(work) {
    const int filter_tile = warpgroup / g.block_tap_groups;
    const int group = work.tile.first_group + warpgroup % g.block_tap_groups;
    is_active_ = group < work.tile.last_group;
    const int base = g.groups[work.tile.first_group].shift / 8 * 8;
    const int shift = is_active_ ? g.groups[group].shift - base : 0;
    // In units of 16 bytes, as descriptors count.
    row_units_ = g.row_bytes / 16;
    ring_units_ = g.ring_stages * kStagePositions * row_units_;
    at_ = static_cast<uint32_t>(shift) * row_units_;
    if (at_ >= ring_units_) at_ -= ring_units_;
    const uint32_t atom_distance = g.atom_axis == AtomAxis::kChannels
                                       ? memory.ring_bytes
                                       : static_cast<uint32_t>(g.atom_shift * g.row_bytes);
    input_lower_ = lower_columns_descriptor(memory.input, atom_distance);
    input_upper_ = upper_descriptor(g.row_bytes);
    input_component_units_ = g.block_channel_tiles * memory.ring_bytes / 16;
    gradient_lower_ =
        memory.gradient / 16 + filter_tile * (kStagePositions * kGradientRowBytes / 16);
    gradient_component_units_ = g.block_filter_tiles * (kStagePositions * kGradientRowBytes / 16);
    const int64_t part =
        (int64_t{work.slice} * g.tiles() + work.tile_index) * g.consumers() + warpgroup;
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const int row = thread / 32 * 16 + thread % 32 / 4;
    partial_ = call.partials + (part * kTileFilters + row) * kColumns + thread % 4 * 2;
    adds_ = call.adds_to_partials;
  }

  __device__ void run() {
    if constexpr (kIsSplit) {
      run_split();
    } else {
      for (int first = 0; first < work_.stages; first += g_.flush_stages) {
        run_chain(min(g_.flush_stages, work_.stages - first));
      }
    }
  }

 private:
  // Accumulates over so many stages in one chain. A stage's MMAs run while the next are issued, and
  // the stage before is released then.
  __device__ __forceinline__ void run_chain(int stages) {
    WgmmaSums<kColumns> accumulators;
    int previous = 0;
    for (int i = 0; i < stages; ++i) {
      wait_barrier(memory_.full + 8 * stage_.slot, stage_.parity);
      if (is_active_) {
        fence_wgmma();
        issue(accumulators, stage_.slot, 0, 0, i > 0);
        commit_wgmma();
        wait_wgmma<1>();
      }
      if (i > 0) release(previous);
      previous = stage_.slot;
      advance();
    }
    wait_wgmma<0>();
    release(previous);
    if (is_active_) add_to_partials(accumulators);
  }

  // Empties the accumulators into a second set after every stage.
  __device__ __forceinline__ void run_split() {
    WgmmaSums<kColumns> accumulators, promoted;
#pragma unroll
    for (float& value : promoted.value) value = 0;
    for (int i = 0; i < work_.stages; ++i) {
      wait_barrier(memory_.full + 8 * stage_.slot, stage_.parity);
      if (is_active_) multiply_split(accumulators, promoted);
      release(stage_.slot);
      advance();
    }
    if (is_active_) add_to_partials(promoted);
  }

  __device__ __forceinline__ void advance() {
    stage_.advance(g_.stages);
    at_ += kStagePositions * row_units_;
    if (at_ >= ring_units_) at_ -= ring_units_;
  }

  // Issues the MMAs of a stage for components (a, b), without waiting for them.
  __device__ __forceinline__ void issue(WgmmaSums<kColumns>& accumulators, int slot, int a, int b,
                                        bool accumulates) const {
    const uint32_t gradient = gradient_lower_ + slot * (memory_.gradient_stage_bytes / 16) +
                              a * gradient_component_units_;
    const uint32_t input = input_lower_ + b * input_component_units_;
#pragma unroll
    for (int k = 0; k < kStagePositions / 16; ++k) {
      uint32_t at = at_ + k * 16 * row_units_;
      if (at >= ring_units_) at -= ring_units_;
      Mma::multiply(accumulators,
                    join_descriptor(gradient + k * (16 * kGradientRowBytes / 16),
                                    upper_descriptor(kGradientRowBytes)),
                    join_descriptor(input + at, input_upper_), accumulates || k > 0);
    }
  }

  // The products of components, the smallest first.
  __device__ __forceinline__ void multiply_split(WgmmaSums<kColumns>& accumulators,
                                                 WgmmaSums<kColumns>& promoted) const {
    const int slot = stage_.slot;
    fence_wgmma();
    if constexpr (kComponents == 3) {
      issue(accumulators, slot, 0, 2, false);
      issue(accumulators, slot, 1, 1, true);
      issue(accumulators, slot, 2, 0, true);
    }
    issue(accumulators, slot, 0, 1, kComponents == 3);
    issue(accumulators, slot, 1, 0, true);
    if constexpr (kHasLowScale) {
      commit_wgmma();
      wait_wgmma<0>();
#pragma unroll
      for (float& value : accumulators.value) value *= 1 / kHalfLowScale;
      fence_wgmma();
    }
    issue(accumulators, slot, 0, 0, true);
    commit_wgmma();
    wait_wgmma<0>();
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) promoted.value[i] += accumulators.value[i];
  }

  __device__ __forceinline__ void release(int slot) const {
    if (threadIdx.x % 32 == 0) arrive(memory_.empty + 8 * slot);
  }

  __device__ __forceinline__ void add_to_partials(const WgmmaSums<kColumns>& sums) {
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {  // pairs of columns, of two rows alternately
      auto* const to = reinterpret_cast<float2*>(partial_ + i % 2 * 8 * kColumns + i / 2 * 8);
      float2 sum{sums.value[2 * i], sums.value[2 * i + 1]};
      if (adds_) {
        const float2 before = *to;
        sum.x += before.x, sum.y += before.y;
      }
      *to = sum;
    }
    adds_ = true;
  }

  const WgradGeometry& g_;
  const WgradMemory& memory_;
  const WgradWork& work_;
  bool is_active_;  // the last block of a residue may have fewer tap groups than warpgroups
  bool adds_;       // the partial sums hold earlier stages already
  RingCursor stage_;
  uint32_t row_units_, ring_units_;
  uint32_t at_;  // where in the ring the stage's first row for this tap group is
  uint32_t input_lower_, input_upper_, input_component_units_;
  uint32_t gradient_lower_, gradient_component_units_;
  float* partial_;  // of this thread's first row and column
};

template <typename Value, int kComponents, int kColumns>
__global__ void __launch_bounds__(128 * max_consumers(kColumns, kComponents) + 32, 1)
    wgrad_kernel(const __grid_constant__ WgradGeometry g, const __grid_constant__ WgradCall call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char unaligned[];
  const WgradMemory memory(g, kComponents, unaligned);
  if (threadIdx.x == 0) memory.init_barriers(g);
  wait_for_kernels_before();
  let_next_kernel_start();
  if (is_shut(call)) return;
  __syncthreads();
  const WgradWork work(g, call, static_cast<int>(blockIdx.x));
  if (work.tile.is_empty) return;
  // The same for all lanes, which lets the compiler keep descriptors in uniform registers.
  const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup < g.consumers()) {
    WgradConsumer<Value, kComponents, kColumns>(g, call, memory, work, warpgroup).run();
  } else if (elect_lane()) {
    WgradProducer<kComponents>(g, call, memory, work).run();
  }
#endif
}

}  // namespace convx
