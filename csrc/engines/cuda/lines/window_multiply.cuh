// The main loop of the MMA warpgroups.
//
//   accumulators[64 filters][kColumns positions] += sum over chunks and taps of
//       A: packed filters of the tap [64][lane_bytes]  *  B: its window [kColumns][lane_bytes]
//
// Two warpgroups run it, with two windows and the same filters, or with one window and two halves
// of 128 filters. One source stage serves all taps of a chunk: the window of tap t starts
// tap_positions[t] positions into the stage. A wgmma takes 32 bytes of channels (a step), and up to
// nine taps of a step form one wgmma group.
//
// The warpgroups are kept out of step, so that one issues MMAs while the other stages its
// accumulators: either the second one starts p.lead stages late, or, in streaming blocks, whose
// tiles have few MMAs, they alternate tile by tile.
#pragma once

#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/lines/window_place.cuh"
#include "kernels/half_scales.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

// Reads source stages that a producer fills; one stage holds a chunk of a tile.
class StageReader {
 public:
  static constexpr bool kAlternates = false;

  __device__ __forceinline__ StageReader(const WindowParams& p, const WindowRings& rings,
                                         int /*first_tile*/)
      : p_(p), rings_(rings) {}

  // Waits for the tile's next chunk. Returns the descriptor of the warpgroup's window; offset: from
  // the tile's first window to that, in 16-byte units.
  __device__ __forceinline__ uint32_t enter(const TilePlace& tile, uint32_t offset) const {
    wait_barrier(rings_.source_full + 8 * source_.slot, source_.parity);
    return lower_descriptor(rings_.source + source_.slot * rings_.source_stage_bytes) + offset +
           tile.lead * (p_.lane_bytes / 16);
  }
  // The descriptor of a tap's window. start: the result of enter. tap: in 16-byte units.
  __device__ __forceinline__ uint32_t find_tap(uint32_t start, int tap) const {
    return start + tap;
  }
  // Call after issuing the chunk's last MMA.
  __device__ __forceinline__ void leave() {
    pending_ = source_.slot;
    source_.advance(p_.source_stages);
  }
  // Call once those MMAs have completed: releases the stage to the producer.
  __device__ __forceinline__ void release(bool leader) {
    if (leader && pending_ >= 0) arrive(rings_.source_empty + 8 * pending_);
    pending_ = -1;
  }

 private:
  const WindowParams& p_;
  const WindowRings& rings_;
  RingCursor source_;
  int pending_ = -1;
};

// Computes the accumulators of 64 filters by kColumns positions.
//
// The tensor cores truncate, so formats with float32's precision use short accumulation chains,
// which are added to totals in float32. If most terms have the same sign (careful), truncation
// errors add up even in short chains, and every step becomes a chain. The products with the low
// components of scaled fp16 are so small that they form one long chain.
//
// Reader: StageReader or LineReader, which know where the positions of a tile are in shared memory.
template <TensorMath kMath, int kColumns, typename Reader>
class WindowMultiplier {
  using Operand = typename TensorTypes<kMath>::Operand;
  using Mma = Wgmma<Operand, kColumns>;
  using Sums = WgmmaSums<kColumns>;
  static constexpr int kOperandBytes = operand_bytes(kMath);
  static constexpr bool kSplit = kMath == TensorMath::kIeee;
  static constexpr bool kHalves = kMath == TensorMath::kHalfIeee;
  static constexpr bool kChained = kSplit || kHalves;
  static constexpr int kPlanes = count_planes(kMath);
  // Named barriers 2 and 3: warpgroup 0 or 1 may issue MMAs.
  static constexpr int kFirstIssueBarrier = 2;
  static constexpr int kMaxBatch = kSplit ? kIeeeChainSteps : kMaxBatchTaps;

 public:
  // Accumulation chains. Those that a format does not use take no registers.
  struct Chains {
    Sums chain;
    Sums low;  // hi x lo and lo x hi, kHalfLowScale times too large
  };

  __device__ __forceinline__ WindowMultiplier(const WindowParams& p, const WindowRings& rings,
                                              const int* taps, int warpgroup,
                                              const TileRange& tiles)
      : p_(p),
        rings_(rings),
        taps_(taps),
        upper_(upper_descriptor(p.lane_bytes)),
        leader_((threadIdx.x & 31) == 0),
        careful_(kHalves && p.scales->careful != 0),
        warpgroup_(warpgroup),
        single_tap_(p.taps == 1),
        a_step_(single_tap_ ? 2 : rings.tap_bytes / 16),
        reader_(p, rings, tiles.first) {
    const bool same_window = p.filter_groups == 2;
    filter_start_ = same_window ? warpgroup * kPlanes * kWindowFilters * p.lane_bytes / 16 : 0;
    source_start_ = same_window ? 0 : warpgroup * p.second_offset * (p.lane_bytes / 16);
    if constexpr (Reader::kAlternates) {
      if (warpgroup == 1 && tiles.first < tiles.end) let_other_issue();
    } else {
      if (p.lead > 0 && warpgroup == 1) wait_at_barrier<1, 256>();
    }
  }

  // Issues all MMAs of a tile. The last group is still running when this returns; finish waits for
  // it and leaves the results in totals. more: this warpgroup has another tile.
  __device__ __forceinline__ void multiply(const TilePlace& tile, Chains& chains, Sums& totals,
                                           bool more) {
    if constexpr (kChained) {
#pragma unroll
      for (float& total : totals.value) total = 0;
    }
    accumulate_ = accumulate_low_ = chained_ = 0;
    filter_pending_ = -1;
    may_issue_ = !Reader::kAlternates;
    for (int chunk = tile.chunk; chunk < tile.chunk_end; ++chunk) {
      // A step takes 32 of lane_bytes. The last chunk may have fewer steps.
      const int left = (p_.channels - chunk * p_.chunk_channels) * kOperandBytes;
      const int steps = min(p_.lane_bytes / 32, (left + 31) / 32);
      const uint32_t b_start = reader_.enter(tile, source_start_);
      for (int first_tap = 0; first_tap < p_.taps; first_tap += p_.stage_taps) {
        wait_barrier(rings_.filter_full + 8 * filter_.slot, p_.resident ? 0 : filter_.parity);
        const int* taps = taps_ + first_tap;
        const int count = single_tap_ ? steps : min(p_.stage_taps, p_.taps - first_tap);
        for (int step = 0; step < (single_tap_ ? 1 : steps); ++step) {
          const uint32_t a =
              lower_descriptor(rings_.filters + filter_.slot * rings_.filter_stage_bytes) +
              filter_start_ + 2 * step;
          const uint32_t b = b_start + 2 * step;
          if (kHalves && careful_) {
#pragma unroll 1
            for (int i = 0; i < count; ++i) {
              multiply_batch<1>(chains, totals, a + i * a_step_, b, taps + i);
            }
          } else {
            multiply_taps<kMaxBatch>(count, chains, totals, a, b, taps);
          }
        }
        filter_pending_ = filter_.slot;
        filter_.advance(p_.filter_stages);
        if constexpr (!Reader::kAlternates) start_follower();
      }
      reader_.leave();
    }
    if (Reader::kAlternates && (more || warpgroup_ == 0)) let_other_issue();
  }

  __device__ __forceinline__ void finish(const Chains& chains, Sums& totals) {
    wait_wgmma<0>();
    release();
    if constexpr (kChained) add_chain(chains, totals);
    if constexpr (kHalves) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        totals.value[i] = fmaf(chains.low.value[i], 1 / kHalfLowScale, totals.value[i]);
      }
    }
  }

 private:
  __device__ __forceinline__ void add_chain(const Chains& chains, Sums& totals) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) totals.value[i] += chains.chain.value[i];
    accumulate_ = chained_ = 0;
  }

  // Calls multiply_batch with count as a compile-time constant; 1 <= count <= kMost.
  template <int kMost>
  __device__ __forceinline__ void multiply_taps(int count, Chains& chains, Sums& totals, uint32_t a,
                                                uint32_t b, const int* taps) {
    if (count == kMost) {
      multiply_batch<kMost>(chains, totals, a, b, taps);
    } else if constexpr (kMost > 1) {
      multiply_taps<kMost - 1>(count, chains, totals, a, b, taps);
    }
  }

  // Issues one wgmma group: one step of kCount taps, or kCount steps of a single tap. There is no
  // branch between the MMAs, because only then can the tensor cores receive the next group while
  // they still work on this one. taps: where each MMA's window starts, in 16-byte units.
  template <int kCount>
  __device__ __forceinline__ void multiply_batch(Chains& chains, Sums& totals, uint32_t a_start,
                                                 uint32_t b_start, const int* taps) {
    if constexpr (kChained) {
      // With three components, each group is a chain, so that its small products come first.
      const int most = careful_ ? 1 : p_.chain_steps;
      if (chained_ > 0 && (kSplit || chained_ + kCount > most)) {
        wait_wgmma<0>();
        release();
        add_chain(chains, totals);
      }
      chained_ += kCount;
    }
    uint32_t a[kCount], b[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      a[i] = a_start + i * a_step_;
      b[i] = reader_.find_tap(b_start, taps[i]);
    }
    // Taken as late as possible, because the other warpgroup cannot issue MMAs meanwhile.
    if (Reader::kAlternates && !may_issue_) {
      wait_at_barrier(kFirstIssueBarrier + warpgroup_, 256);
      may_issue_ = true;
    }
    __syncwarp();  // staging may leave the lanes diverged; wgmma needs the whole warp
    fence_wgmma();
    Sums& sums = kChained ? chains.chain : totals;
    if constexpr (kSplit) {
      // The small products of all taps come first: truncation loses a fraction of the sum so far.
#pragma unroll
      for (int i = 0; i < kCount; ++i) multiply_small(sums, a[i], b[i], i == 0 ? accumulate_ : 1);
      accumulate_ = 1;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kHalves) {
        multiply_low(chains.low, a[i], b[i], i == 0 ? accumulate_low_ : 1);
      }
      product(sums, a[i], b[i], i == 0 ? accumulate_ : 1);
    }
    commit_wgmma();
    accumulate_ = accumulate_low_ = 1;
    wait_wgmma<1>();
    release();
  }

  // Two components: hi x lo and lo x hi. lo x lo is below float32's rounding error.
  __device__ __forceinline__ void multiply_low(Sums& sums, uint32_t a, uint32_t b, int accumulate) {
    product(sums, a + kWindowFilters * p_.lane_bytes / 16, b, accumulate);
    product(sums, a, b + p_.plane_bytes / 16, 1);
  }

  // Three components: all products but that of components 0 and 0. Those of components 1 and 2, 2
  // and 1, and 2 and 2 are below float32's rounding error.
  __device__ __forceinline__ void multiply_small(Sums& sums, uint32_t a, uint32_t b,
                                                 int accumulate) {
    const uint32_t a_plane = kWindowFilters * p_.lane_bytes / 16;
    const uint32_t b_plane = p_.plane_bytes / 16;
    product(sums, a + 2 * a_plane, b, accumulate);
    product(sums, a, b + 2 * b_plane, 1);
    product(sums, a + a_plane, b + b_plane, 1);
    product(sums, a + a_plane, b, 1);
    product(sums, a, b + b_plane, 1);
  }

  __device__ __forceinline__ void product(WgmmaSums<kColumns>& sums, uint32_t a, uint32_t b,
                                          int accumulate) {
    Mma::multiply(sums, join_descriptor(a, upper_), join_descriptor(b, upper_), accumulate);
  }

  // Releases the stages whose last MMAs have completed.
  __device__ __forceinline__ void release() {
    if (leader_ && filter_pending_ >= 0 && !p_.resident) {
      arrive(rings_.filter_empty + 8 * filter_pending_);
    }
    filter_pending_ = -1;
    reader_.release(leader_);
  }

  // Streaming blocks have few MMAs per tile, so one warpgroup issues its MMAs only after the other
  // has issued all of its own. Running at the same time, both would take twice as long, and no
  // warpgroup would stage accumulators meanwhile.
  __device__ __forceinline__ void let_other_issue() const {
    pass_barrier(kFirstIssueBarrier + 1 - warpgroup_, 256);
  }

  // Lets the second warpgroup start once the first is p.lead stages ahead, so that one stages
  // accumulators while the other issues MMAs.
  __device__ __forceinline__ void start_follower() {
    if (warpgroup_ == 0 && ++stages_done_ == p_.lead) {
      pass_barrier<1, 256>();
    }
  }

  const WindowParams& p_;
  const WindowRings& rings_;
  const int* taps_;
  const uint32_t upper_;
  const bool leader_, careful_;
  const int warpgroup_;
  // True: a wgmma group has the steps of one tap. False: it has the taps of one step.
  const bool single_tap_;
  const uint32_t a_step_;  // from one MMA's filters to the next one's in a group, in 16-byte units
  uint32_t filter_start_, source_start_;  // in 16-byte units
  Reader reader_;
  RingCursor filter_;
  int filter_pending_ = -1;
  int accumulate_ = 0, accumulate_low_ = 0;
  int chained_ = 0;  // steps in the current accumulation chain
  bool may_issue_ = false;
  int stages_done_ = 0;
};

}  // namespace convx
