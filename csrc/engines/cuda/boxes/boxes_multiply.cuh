// The main loop of the two consumer warpgroups. Each has 64 pixels of every piece of a tile, or,
// with own pieces (boxes_shape.h), both halves of one piece. It multiplies a stage in four steps of
// 32 bytes of channels:
//
//     channels_last  A and B from shared memory (descriptors); one stage of MMAs stays in flight
//     NCHW           A from registers: a Loader transposes fragments of pixels as it reads them,
//                    half a stage at a time, while the tensor cores work on the other half
#pragma once

#include <type_traits>

#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/boxes/boxes_fragments.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

// Loader: reads pixels into registers (boxes_fragments.cuh). Source: the producer's class, which
// says how a stage is released. kColumns: filters are an N-major operand (BoxFilters::kColumns).
template <TensorMath kMath, int kFilters, int kPieces, typename Loader, typename Source,
          bool kColumns>
class BoxMultiplier {
  static constexpr bool kOwnPieces = kPieces == 2 && !Loader::kUsed;
  using Operand = typename TensorTypes<kMath>::Operand;
  using Mma = Wgmma<std::conditional_t<kColumns, ByColumns<Operand>, Operand>, kFilters>;
  static constexpr int kSteps = kBoxLineBytes / 32;  // MMAs per stage
  // From the filters of one MMA to those of the next, in descriptor units of 16 bytes: 32 bytes of
  // channels, or 16 channels of 128 bytes each.
  static constexpr int kFilterStep = kColumns ? 16 * kBoxLineBytes / 16 : 2;
  // Fragments are loaded by half stages (the pieces, if there are two), so that one half is loaded
  // while the tensor cores read the other.
  static_assert(kPieces <= 2);
  static constexpr int kHalfSteps = kSteps * kPieces / 2;
  using Fragments = uint32_t[kHalfSteps][4];

 public:
  using Sums = WgmmaSums<kFilters>[kPieces];

  __device__ __forceinline__ BoxMultiplier(const BoxesParams& p, const BoxesRing& ring)
      : p_(p),
        ring_(ring),
        leader_((threadIdx.x & 31) == 0),
        says_(leader_ || !p.boxed_source),
        loader_(p) {
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    first_pixel_ = warpgroup * (kOwnPieces ? kBoxPixels : kBoxPixels / 2) * kBoxLineBytes;
  }

  // Waits for the resident filters, if any. Call before the first tile.
  __device__ __forceinline__ void take_filters() const {
    if (p_.resident) wait_barrier(ring_.filters_full, 0);
  }

  // Waits for the next stage and returns the index of its tile (or split-K slice), which is p.tiles
  // or more at the end.
  __device__ __forceinline__ int find_tile() const {
    wait_barrier(ring_.full + 8 * cursor_.slot, cursor_.parity);
    uint32_t index = 0;  // only the lane that releases the stage reads it
    if (leader_) index = load_word(ring_.tile + 4 * cursor_.slot);
    return static_cast<int>(__shfl_sync(0xffffffff, index, 0));
  }

  // Takes the only stage of a tile whose phase has no taps. It holds no values.
  __device__ __forceinline__ void skip_stage() {
    cursor_.advance(p_.stages);
    give_back();
  }

  // Computes a work item. The accumulators are complete on return.
  __device__ __forceinline__ void multiply(Sums& sums, const TilePart& part) {
    if constexpr (Loader::kByTile) loader_.start_tile(part.tile);
    first_chunk_ = part.first_step;
    first_resident_ = p_.phases[part.phase].first_tap * p_.chunks;
    int stage = 0, end = part.steps;
    if constexpr (kOwnPieces) {
      if (p_.is_staggered) {
        if (threadIdx.x < kBoxMultipliers / 2) {
          end = kBoxLead;
        } else {
          wait_at_barrier<kLeadBarrier, kBoxMultipliers>();
        }
      }
    }
#pragma unroll 1
    for (;; end = part.steps) {
#pragma unroll 1
      for (; stage < end; ++stage) {
        wait_barrier(ring_.full + 8 * cursor_.slot, cursor_.parity);
        __syncwarp();  // lanes diverge while they wait
        if constexpr (Loader::kUsed) {
          multiply_fragments(sums, stage);
        } else {
          multiply_stage(sums, stage);
        }
        cursor_.advance(p_.stages);
      }
      if (!kOwnPieces || end == part.steps) break;
      pass_barrier<kLeadBarrier, kBoxMultipliers>();
    }
    wait_wgmma<0>();
    __syncwarp();  // all lanes have read the last stage
    give_back();
  }

 private:
  __device__ __forceinline__ void multiply_stage(Sums& sums, int stage) {
    const uint32_t pixels = find_pixels();
    const uint32_t filters = find_filters(pixels, stage);
    const uint32_t a = lower_descriptor(pixels + first_pixel_);
    fence_wgmma();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < kPieces; ++half) {
        const uint32_t rows = a + half * (kBoxPixels / 2 * kBoxLineBytes / 16);
        Mma::multiply(
            sums[half], join_descriptor(rows + 2 * step, upper_descriptor(kBoxLineBytes)),
            join_descriptor(filters + kFilterStep * step, upper_descriptor(kBoxLineBytes)),
            step > 0 ? 1 : stage > 0);
      }
    }
    commit_wgmma();
    if (stage > 0) {
      wait_wgmma<1>();
      give_back();
    }
  }

  __device__ __forceinline__ void multiply_fragments(Sums& sums, int stage) {
    const uint32_t pixels = find_pixels();
    const uint32_t filters = find_filters(pixels, stage);
    const auto multiply_half = [&](Fragments& fragments, int half) {
      const int piece = half * (kPieces - 1), first = kPieces == 1 ? half * kHalfSteps : 0;
#pragma unroll
      for (int i = 0; i < kHalfSteps; ++i) {
        load_fragment(pixels, stage, piece, first + i, fragments[i]);
      }
      fence_wgmma();
#pragma unroll
      for (int i = 0; i < kHalfSteps; ++i) {
        Mma::multiply(
            sums[piece], fragments[i],
            join_descriptor(filters + kFilterStep * (first + i), upper_descriptor(kBoxLineBytes)),
            first + i > 0 ? 1 : stage > 0);
      }
      commit_wgmma();
    };
    multiply_half(lower_, 0);
    wait_wgmma<1>();
    if (stage > 0) give_back();
    multiply_half(upper_, 1);
    wait_wgmma<1>();
  }

  // Loads the A operand of one step. wgmma would truncate float32 to TF32, so it is rounded here.
  __device__ __forceinline__ void load_fragment(uint32_t pixels, int stage, int piece, int step,
                                                uint32_t (&words)[4]) const {
    loader_.load(pixels, first_chunk_ + stage, piece, step, words);
    if constexpr (Loader::kRounds) {
#pragma unroll
      for (uint32_t& word : words) word = round_to_tf32(__uint_as_float(word));
    }
  }

  __device__ __forceinline__ uint32_t find_pixels() const {
    return ring_.first + cursor_.slot * p_.stage_bytes;
  }
  // Descriptor of the filters that belong to a stage.
  __device__ __forceinline__ uint32_t find_filters(uint32_t pixels, int stage) const {
    const uint32_t first =
        p_.resident ? ring_.resident + (first_resident_ + stage) * (kFilters * kBoxLineBytes)
                    : pixels + p_.pixel_bytes;
    return kColumns ? lower_columns_descriptor(first, kBoxFilters * kBoxLineBytes)
                    : lower_descriptor(first);
  }

  __device__ __forceinline__ void give_back() {
    if constexpr (Source::kNamedBarriers) {
      give_stage_back<Source::kWarps>(done_.slot);
    } else if (says_) {
      arrive(ring_.empty + 8 * done_.slot);
    }
    done_.advance(p_.stages);
  }

  const BoxesParams& p_;
  const BoxesRing& ring_;
  const bool leader_;
  // True if this lane arrives when a stage is released: one lane per warp, or every lane where the
  // stages are not filled by TMA.
  const bool says_;
  Loader loader_;
  uint32_t first_pixel_;      // byte offset of this warpgroup's pixels in a stage
  int first_chunk_ = 0;       // NCHW, where the only tap's steps are chunks
  int first_resident_ = 0;    // resident filters of earlier phases, in stages
  Fragments lower_, upper_;   // unused, and without registers, for NoFragments
  RingCursor cursor_, done_;  // next stage to multiply, and next to release
};

}  // namespace convx
