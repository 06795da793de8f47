// The consumer warpgroups of the weight gradient: MMAs and partial sums.
//
// Accumulation. The tensor cores truncate when they add to an accumulator, an error that grows with
// the chain. Most forms add their accumulators to the slice's partial sums in memory every
// flush_stages stages. Forms that must be as exact as float32 (promotes_sums) empty them into a
// second set of registers after every stage. wgrad_store.cuh or wgrad_reduce.cuh adds the partial
// sums of all slices, in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "device/mbarrier.cuh"
#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/weight_grad/wgrad_store.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

// A consumer warpgroup. kPromotes: see promotes_sums. kHasPairs: images may end in gaps.
template <typename Value, int kComponents, int kColumns, bool kPromotes, bool kHasPairs>
class WgradConsumer {
  // float16 components: the second is kHalfLowScale times as large (tensor_types.cuh).
  static constexpr bool kHasLowScale = kComponents > 1 && std::is_same_v<Value, __half>;
  static_assert(kPromotes || !kHasLowScale, "a chain has accumulators of one scale");
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
        start_units(memory.gradient) + filter_tile * (kStagePositions * kGradientRowBytes / 16);
    gradient_component_units_ = g.block_filter_tiles * (kStagePositions * kGradientRowBytes / 16);
    const int64_t consumer =
        (int64_t{work.slice} * g.tiles() + work.tile_index) * g.consumers() + warpgroup;
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const int row = thread / 32 * 16 + thread % 32 / 4;
    partial_ = call.partials + (consumer * kTileFilters + row) * kColumns + thread % 4 * 2;
    adds_ = call.adds_to_partials;
  }

  __device__ void run() {
    if constexpr (kPromotes) {
      run_promoted();
    } else {
      for (int first = 0; first < work_.stages; first += g_.flush_stages) {
        run_chain(min(g_.flush_stages, work_.stages - first));
      }
    }
  }

 private:
  // Accumulates over so many stages in one chain. A stage's MMAs run while the next are issued, and
  // the stage before is released then. Where images end in gaps, two stages take the place of one.
  __device__ __forceinline__ void run_chain(int stages) {
    WgmmaSums<kColumns> accumulators;
    int previous = 0, held = 0;  // the stages before: the first slot, and how many
    for (int i = 0; i < stages; i += held) {
      wait_barrier(memory_.full + 8 * stage_.slot, stage_.parity);
      const bool is_pair = kHasPairs && g_.images_end_in_gaps && i + 1 < stages;
      if (is_pair) wait_barrier(memory_.full + 8 * (stage_.slot + 1), stage_.parity);
      if (is_active_) {
        fence_wgmma();
        // Both branches commit: after them, the compiler would add an MMA to commit.
        if (is_pair) {
          issue_pair(accumulators, stage_.slot, i > 0);
          commit_wgmma();
        } else {
          issue_small_products(accumulators, stage_.slot, i > 0);
          issue(accumulators, stage_.slot, 0, 0, kComponents > 1 || i > 0);
          commit_wgmma();
        }
        wait_wgmma<1>();
      }
      release(previous, held);
      previous = stage_.slot;
      held = is_pair ? 2 : 1;
      advance();
      if (is_pair) advance();
    }
    wait_wgmma<0>();
    release(previous, held);
    finish(accumulators);
  }

  // Empties the accumulators into a second set after every stage.
  __device__ __forceinline__ void run_promoted() {
    WgmmaSums<kColumns> accumulators, promoted;
#pragma unroll
    for (float& value : promoted.value) value = 0;
    for (int i = 0; i < work_.stages; ++i) {
      wait_barrier(memory_.full + 8 * stage_.slot, stage_.parity);
      if (is_active_) multiply_promoted(accumulators, promoted);
      release(stage_.slot, 1);
      advance();
    }
    finish(promoted);
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

  // Issues the MMAs of two stages in neighbouring slots, each of which is an image whose last 8
  // positions are gaps: 7 MMAs of 16 positions, the middle one of which reads 8 of each image.
  __device__ __forceinline__ void issue_pair(WgmmaSums<kColumns>& accumulators, int slot,
                                             bool accumulates) const {
    constexpr uint32_t kGroupUnits = 8 * kGradientRowBytes / 16;  // of 8 positions
    const uint32_t stage_units = memory_.gradient_stage_bytes / 16;
    const uint32_t gradient = gradient_lower_ + slot * stage_units;
#pragma unroll
    for (int k = 0; k < 7; ++k) {
      const int group = k <= 3 ? 2 * k : 2 * k + 1;  // the first of the MMA's two groups
      uint32_t at = at_ + group * 8 * row_units_;
      if (at >= ring_units_) at -= ring_units_;
      const uint32_t from =
          gradient + (group < 8 ? group * kGroupUnits : stage_units + (group - 8) * kGroupUnits);
      // Over the gap, the second group is further away than the next 8 positions.
      const uint32_t gradient_upper =
          upper_descriptor(kGradientRowBytes) + (k == 3 ? stage_units - 7 * kGroupUnits : 0);
      const uint32_t input_upper = input_upper_ + (k == 3 ? 8 * row_units_ : 0);
      Mma::multiply(accumulators, join_descriptor(from, gradient_upper),
                    join_descriptor(input_lower_ + at, input_upper), accumulates || k > 0);
    }
  }

  // Issues all products of components but that of the largest, the smallest first.
  __device__ __forceinline__ void issue_small_products(WgmmaSums<kColumns>& accumulators, int slot,
                                                       bool accumulates) const {
    if constexpr (kComponents == 3) {
      issue(accumulators, slot, 0, 2, accumulates);
      issue(accumulators, slot, 1, 1, true);
      issue(accumulators, slot, 2, 0, true);
    }
    if constexpr (kComponents > 1) {
      issue(accumulators, slot, 0, 1, kComponents == 3 || accumulates);
      issue(accumulators, slot, 1, 0, true);
    }
  }

  // Multiplies a stage, and empties the accumulators.
  __device__ __forceinline__ void multiply_promoted(WgmmaSums<kColumns>& accumulators,
                                                    WgmmaSums<kColumns>& promoted) const {
    const int slot = stage_.slot;
    fence_wgmma();
    issue_small_products(accumulators, slot, false);
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

  // Releases so many neighbouring stages.
  __device__ __forceinline__ void release(int slot, int count) const {
    if (threadIdx.x % 32 != 0) return;
    if (count > 0) arrive(memory_.empty + 8 * slot);
    if (count > 1) arrive(memory_.empty + 8 * (slot + 1));
  }

  __device__ __forceinline__ void finish(WgmmaSums<kColumns>& sums) {
    if (g_.writes_result) {
      wait_at_barrier(1, 128 * g_.consumers());  // until no MMA reads the operands any more
      if (is_active_) stage_sums(g_, memory_, sums, static_cast<int>(threadIdx.x));
    } else if (is_active_) {
      add_to_partials(sums);
    }
  }

  // All loads before all stores: one after the other, each would take a round trip to L2.
  __device__ __forceinline__ void add_to_partials(WgmmaSums<kColumns>& sums) {
    const auto place = [&](int i) {  // pairs of columns, of two rows alternately
      return reinterpret_cast<float2*>(partial_ + i % 2 * 8 * kColumns + i / 2 * 8);
    };
    if (adds_) {
      constexpr int kBatch = 8;
#pragma unroll
      for (int first = 0; first < kColumns / 4; first += kBatch) {
        float2 before[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) before[i] = *place(first + i);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          sums.value[2 * (first + i)] += before[i].x;
          sums.value[2 * (first + i) + 1] += before[i].y;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      *place(i) = float2{sums.value[2 * i], sums.value[2 * i + 1]};
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

}  // namespace convx
