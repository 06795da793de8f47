// Two warpgroups that multiply the ring's stages, 64 pixels each of every piece of a tile.
#pragma once

#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda_boxes/boxes_fragments.cuh"
#include "engines/tensor_types.cuh"

namespace convx {

// Loader: how pixels are taken into registers, if they are. Source: what copied them.
template <TensorMath kMath, int kFilters, int kPieces, typename Loader, typename Source>
class BoxMultiplier {
  static_assert(kPieces == 1 || Loader::kUsed);
  using Mma = Wgmma<typename TensorTypes<kMath>::Operand, kFilters>;
  static constexpr int kSteps = kBoxLineBytes / 32;  // products of a stage
  // By halves of a stage, which are its pieces if it has two: one is read while the tensor cores
  // read the other.
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
    first_pixel_ = warpgroup * (kBoxPixels / 2) * kBoxLineBytes;
  }

  // Before the first tile: waits for filters that stay.
  __device__ __forceinline__ void take_filters() const {
    if (p_.resident) wait_barrier(ring_.filters_full, 0);
  }

  // The index of the next tile, or part of one, or a larger one than any.
  __device__ __forceinline__ int find_tile() const {
    wait_barrier(ring_.full + 8 * cursor_.slot, cursor_.parity);
    uint32_t index = 0;  // read by the lane that gives the stage back
    if (leader_) index = load_word(ring_.tile + 4 * cursor_.slot);
    return static_cast<int>(__shfl_sync(0xffffffff, index, 0));
  }

  // Leaves in sums those of that part.
  __device__ __forceinline__ void multiply(Sums& sums, const TilePart& part) {
    if constexpr (Loader::kByTile) loader_.start_tile(part.tile);
    first_chunk_ = part.first_chunk;
    const int count = p_.tap_rows * p_.tap_columns * part.chunks;
#pragma unroll 1
    for (int stage = 0; stage < count; ++stage) {
      wait_barrier(ring_.full + 8 * cursor_.slot, cursor_.parity);
      __syncwarp();  // waiting leaves lanes apart
      if constexpr (Loader::kUsed) {
        multiply_fragments(sums, stage);
      } else {
        multiply_stage(sums, stage);
      }
      cursor_.advance(p_.stages);
    }
    wait_wgmma<0>();
    __syncwarp();  // other lanes have read the last stage, too
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
      Mma::multiply(sums[0], join_descriptor(a + 2 * step, upper_descriptor(kBoxLineBytes)),
                    join_descriptor(filters + 2 * step, upper_descriptor(kBoxLineBytes)),
                    step > 0 ? 1 : stage > 0);
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
        Mma::multiply(sums[piece], fragments[i],
                      join_descriptor(filters + 2 * (first + i), upper_descriptor(kBoxLineBytes)),
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

  // Of a step's channels. The tensor cores would truncate float32.
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
  // Descriptor of the filters that a stage's pixels are multiplied by.
  __device__ __forceinline__ uint32_t find_filters(uint32_t pixels, int stage) const {
    return lower_descriptor(p_.resident ? ring_.resident + stage * (kFilters * kBoxLineBytes)
                                        : pixels + p_.pixel_bytes);
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
  const bool says_;  // that a stage has been read: a lane for its warp, or every one
  Loader loader_;
  uint32_t first_pixel_;  // bytes to this warpgroup's
  int first_chunk_ = 0;
  Fragments lower_, upper_;   // take no registers where there are none
  RingCursor cursor_, done_;  // next to multiply, and to give back
};

}  // namespace convx
