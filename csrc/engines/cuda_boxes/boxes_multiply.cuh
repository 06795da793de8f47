// Two warpgroups that multiply the ring's stages, 64 of a tile's pixels each. kPlanes: of NCHW.
#pragma once

#include "device/shared_memory.cuh"
#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda_boxes/boxes_ring.cuh"
#include "engines/tensor_types.cuh"

namespace convx {

template <TensorMath kMath, int kFilters, bool kPlanes>
class BoxMultiplier {
  using Mma = Wgmma<typename TensorTypes<kMath>::Operand, kFilters>;
  static constexpr int kSteps = kBoxLineBytes / 32;  // products of a stage
  // float32 is rounded on its way to the tensor cores, which would truncate it, and planes are
  // turned: through registers.
  static constexpr bool kRounds = kMath == TensorMath::kTf32;
  // By halves of a stage: one is read while the tensor cores read the other.
  using Fragments = uint32_t[2][4];

 public:
  using Sums = WgmmaSums<kFilters>;

  __device__ __forceinline__ BoxMultiplier(const BoxesParams& p, const BoxesRing& ring)
      : p_(p), ring_(ring), leader_((threadIdx.x & 31) == 0) {
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    first_pixel_ = warpgroup * (kBoxPixels / 2) * kBoxLineBytes;
    const int lane = threadIdx.x & 31, matrix = lane / 8;
    const int pixel = threadIdx.x / 32 * 16;  // first of this warp's
    if constexpr (!kPlanes) {
      // Lane l reads, of matrix l / 8: the lower or upper eight pixels, and the first or second 16
      // bytes of a product's channels.
      place_ = (pixel + matrix % 2 * 8 + lane % 8) * kBoxLineBytes + matrix / 2 * 16;
    } else {
      // The warp's pixels are part of a line; rows are channels.
      const int line = pixel / line_pixels(kMath), first = pixel % line_pixels(kMath);
      place_ = line * (box_chunk(kMath) * kBoxLineBytes);
      if constexpr (kRounds) {
        place_ += lane % 4 * kBoxLineBytes + (first + lane / 4) * 4;
      } else {
        // Of matrix l / 8: the lower or upper eight pixels, and channels.
        place_ += (matrix / 2 * 8 + lane % 8) * kBoxLineBytes + (first + matrix % 2 * 8) * 2;
      }
    }
  }

  // Before the first tile: waits for filters that stay, and rounds them where nobody has.
  __device__ __forceinline__ void take_filters() const {
    if (!p_.resident) return;
    wait_barrier(ring_.filters_full, 0);
    if (!kRounds || !p_.filters_in_place) return;
    const int pieces = p_.tap_rows * p_.tap_columns * p_.chunks * (kFilters * kBoxLineBytes / 16);
    for (int i = threadIdx.x; i < pieces; i += kBoxMultipliers) {
      uint32_t words[4];
      load_16_bytes(ring_.resident + 16 * i, words);
#pragma unroll
      for (uint32_t& word : words) word = round_to_tf32(__uint_as_float(word));
      store_16_bytes(ring_.resident + 16 * i, words);
    }
    fence_async_proxy();
    wait_at_barrier<1, kBoxMultipliers>();
  }

  // Leaves in sums those of the next tile.
  __device__ __forceinline__ void multiply(Sums& sums) {
    const int count = p_.tap_rows * p_.tap_columns * p_.chunks;
#pragma unroll 1
    for (int stage = 0; stage < count; ++stage) {
      wait_barrier(ring_.full + 8 * cursor_.slot, cursor_.parity);
      __syncwarp();  // waiting leaves lanes apart
      if constexpr (kRounds || kPlanes) {
        multiply_fragments(sums, stage);
      } else {
        multiply_stage(sums, stage);
      }
      cursor_.advance(p_.stages);
    }
    wait_wgmma<0>();
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
      Mma::multiply(sums, join_descriptor(a + 2 * step, upper_descriptor(kBoxLineBytes)),
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
    const auto multiply_half = [&](Fragments& fragments, int first) {
#pragma unroll
      for (int i = 0; i < 2; ++i) load_fragment(pixels + place_, first + i, fragments[i]);
      fence_wgmma();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Mma::multiply(sums, fragments[i],
                      join_descriptor(filters + 2 * (first + i), upper_descriptor(kBoxLineBytes)),
                      first + i > 0 ? 1 : stage > 0);
      }
      commit_wgmma();
    };
    multiply_half(lower_, 0);
    wait_wgmma<1>();
    if (stage > 0) give_back();
    multiply_half(upper_, kSteps / 2);
    wait_wgmma<1>();
  }

  // Of a step's channels, rounded where that is needed. from: of this lane, in the stage.
  __device__ __forceinline__ void load_fragment(uint32_t from, int step,
                                                uint32_t (&words)[4]) const {
    if constexpr (!kPlanes) {
      load_matrices(swizzle_line(from + 32 * step), words);
    } else if constexpr (kRounds) {
      from += 8 * step * kBoxLineBytes;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = load_word(swizzle_line(from + i / 2 * 4 * kBoxLineBytes + i % 2 * 32));
      }
    } else {
      load_turned_matrices(swizzle_line(from + 16 * step * kBoxLineBytes), words);
    }
    if constexpr (kRounds) {
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
                                        : pixels + kBoxPixelBytes);
  }

  __device__ __forceinline__ void give_back() {
    if (leader_) arrive(ring_.empty + 8 * done_.slot);
    done_.advance(p_.stages);
  }

  const BoxesParams& p_;
  const BoxesRing& ring_;
  const bool leader_;
  uint32_t first_pixel_;      // bytes to this warpgroup's
  uint32_t place_;            // the same, to what this lane reads first
  Fragments lower_, upper_;   // take no registers where there are none
  RingCursor cursor_, done_;  // next to multiply, and to give back
};

}  // namespace convx
