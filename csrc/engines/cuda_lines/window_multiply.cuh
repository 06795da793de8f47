// What multiplies: two warpgroups, each 64 filters by kColumns positions of the line
// (window_shape.h), either two windows of the same filters or two halves of the filters of one
// window.
//
// A stage of source positions serves all taps: tap (r, s) multiplies the packed filters of (r, s)
// with the window that starts tap_positions[r, s] further.
#pragma once

#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda_lines/window_place.cuh"
#include "engines/cuda_lines/window_rings.cuh"
#include "engines/half_scales.cuh"
#include "engines/tensor_types.cuh"

namespace convx {

// Positions that come in stages of a ring, each what a chunk of a tile reaches.
class StageReader {
 public:
  static constexpr bool kTakesTurns = false;

  __device__ __forceinline__ StageReader(const WindowParams& p, const WindowRings& rings,
                                         int /*first_tile*/)
      : p_(p), rings_(rings) {}

  // Waits for the next chunk of a tile. offset: of the warpgroup's window, in 16-byte pieces.
  __device__ __forceinline__ uint32_t enter(const TilePlace& tile, uint32_t offset) const {
    wait_barrier(rings_.source_full + 8 * source_.slot, source_.parity);
    return lower_descriptor(rings_.source + source_.slot * rings_.source_stage_bytes) + offset +
           tile.lead * (p_.lane_bytes / 16);
  }
  // The descriptor of a tap's window. start: what enter returned.
  __device__ __forceinline__ uint32_t find_tap(uint32_t start, int tap) const {
    return start + tap;
  }
  // The chunk's last products have been started,
  __device__ __forceinline__ void leave() {
    pending_ = source_.slot;
    source_.advance(p_.source_stages);
  }
  // and are done.
  __device__ __forceinline__ void give_back(bool leader) {
    if (leader && pending_ >= 0) arrive(rings_.source_empty + 8 * pending_);
    pending_ = -1;
  }

 private:
  const WindowParams& p_;
  const WindowRings& rings_;
  RingCursor source_;
  int pending_ = -1;
};

// The reduction of a tile: sums of 64 filters by kColumns positions.
//
// The tensor cores truncate sums, so those of float32's precision are added up in short chains,
// which are added to totals by ordinary additions; where terms have the same sign (careful) what is
// truncated adds up as well, and each step is a chain. Products of halves' lower parts are so small
// that one chain of their own does.
// Reader: knows where in shared memory tiles' positions are, StageReader or LineReader.
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
  static constexpr int kFirstTurn = 2;  // the first warpgroup's barrier; behind it the second's
  static constexpr int kMaxBatch = kSplit ? kIeeeChainSteps : kMaxBatchTaps;

 public:
  // Sums on their way to totals; those that are not needed take no registers.
  struct Chains {
    Sums chain;
    Sums low;  // of products with one lower part, kHalfLowScale times too large
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
    if constexpr (Reader::kTakesTurns) {
      if (warpgroup == 1 && tiles.first < tiles.end) pass_turn();
    } else {
      if (p.lead > 0 && warpgroup == 1) wait_at_barrier<1, 256>();
    }
  }

  // Starts all products; the last of them go on until finish, which leaves the sums in totals.
  // more: tiles that this warpgroup has after this one.
  __device__ __forceinline__ void multiply(const TilePlace& tile, Chains& chains, Sums& totals,
                                           bool more) {
    if constexpr (kChained) {
#pragma unroll
      for (float& total : totals.value) total = 0;
    }
    accumulate_ = accumulate_low_ = chained_ = 0;
    filter_pending_ = -1;
    has_turn_ = !Reader::kTakesTurns;
    for (int chunk = tile.chunk; chunk < tile.chunk_end; ++chunk) {
      // A step takes 32 of lane_bytes; the last chunk may have fewer.
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
        if constexpr (!Reader::kTakesTurns) start_follower();
      }
      reader_.leave();
    }
    if (Reader::kTakesTurns && (more || warpgroup_ == 0)) pass_turn();
  }

  __device__ __forceinline__ void finish(const Chains& chains, Sums& totals) {
    wait_wgmma<0>();
    give_back();
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

  // A stage has at most kMost taps.
  template <int kMost>
  __device__ __forceinline__ void multiply_taps(int count, Chains& chains, Sums& totals, uint32_t a,
                                                uint32_t b, const int* taps) {
    if (count == kMost) {
      multiply_batch<kMost>(chains, totals, a, b, taps);
    } else if constexpr (kMost > 1) {
      multiply_taps<kMost - 1>(count, chains, totals, a, b, taps);
    }
  }

  // A step of kCount taps in one group, or so many steps of a single tap, without a branch between
  // them: only then do the tensor cores get the next group while they work on this one. taps: of
  // each product, where its window starts.
  template <int kCount>
  __device__ __forceinline__ void multiply_batch(Chains& chains, Sums& totals, uint32_t a_start,
                                                 uint32_t b_start, const int* taps) {
    if constexpr (kChained) {
      // With three parts each group of products is a chain, so that small ones come first.
      const int most = careful_ ? 1 : p_.chain_steps;
      if (chained_ > 0 && (kSplit || chained_ + kCount > most)) {
        wait_wgmma<0>();
        give_back();
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
    if (Reader::kTakesTurns && !has_turn_) {  // no earlier, it keeps the other from starting
      wait_at_barrier(kFirstTurn + warpgroup_, 256);
      has_turn_ = true;
    }
    __syncwarp();  // storing leaves lanes apart, and wgmma wants them together
    fence_wgmma();
    Sums& sums = kChained ? chains.chain : totals;
    if constexpr (kSplit) {
      // Small products first, of all taps: what truncation takes is a share of the sum so far.
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
    give_back();
  }

  // Of two halves; the product of both lower ones is below float32's rounding.
  __device__ __forceinline__ void multiply_low(Sums& sums, uint32_t a, uint32_t b, int accumulate) {
    product(sums, a + kWindowFilters * p_.lane_bytes / 16, b, accumulate);
    product(sums, a, b + p_.plane_bytes / 16, 1);
  }

  // Of three parts, all but the product of the first ones; those of parts 1 and 2, 2 and 1, 2 and 2
  // are below float32's rounding.
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

  // Stages whose last group has been waited for go back to those who fill them.
  __device__ __forceinline__ void give_back() {
    if (leader_ && filter_pending_ >= 0 && !p_.resident) {
      arrive(rings_.filter_empty + 8 * filter_pending_);
    }
    filter_pending_ = -1;
    reader_.give_back(leader_);
  }

  // Where a tile's products are few, either warpgroup starts its own when the other's are done: at
  // the same time they would take both of them twice as long, with nobody staging sums meanwhile.
  __device__ __forceinline__ void pass_turn() const {
    pass_barrier(kFirstTurn + 1 - warpgroup_, 256);
  }

  // The second warpgroup starts some stages late, so that one stores while the other multiplies.
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
  const bool single_tap_;  // its steps are a group, as else are the taps of a step
  const uint32_t a_step_;  // between the filters of a group's products, in 16-byte pieces
  uint32_t filter_start_, source_start_;  // in 16-byte pieces
  Reader reader_;
  RingCursor filter_;
  int filter_pending_ = -1;
  int accumulate_ = 0, accumulate_low_ = 0;
  int chained_ = 0;  // steps of the chain
  bool has_turn_ = false;
  int stages_done_ = 0;
};

}  // namespace convx
