// Two warpgroups that multiply the ring's stages, 64 of a tile's pixels each.
#pragma once

#include "device/shared_memory.cuh"
#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda_boxes/boxes_ring.cuh"
#include "engines/tensor_types.cuh"

namespace convx {

template <TensorMath kMath, int kFilters>
class BoxMultiplier {
  using Mma = Wgmma<typename TensorTypes<kMath>::Operand, kFilters>;
  static constexpr int kSteps = kBoxLineBytes / 32;  // products of a stage
  // float32 is rounded on its way to the tensor cores, which would truncate it: through registers.
  static constexpr bool kRounds = kMath == TensorMath::kTf32;
  // By halves of a stage: one is read while the tensor cores read the other.
  using Rounded = uint32_t[2][4];

 public:
  using Sums = WgmmaSums<kFilters>;

  __device__ __forceinline__ BoxMultiplier(const BoxesParams& p, const BoxesRing& ring)
      : p_(p), ring_(ring), leader_((threadIdx.x & 31) == 0) {
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    first_pixel_ = warpgroup * (kBoxPixels / 2) * kBoxLineBytes;
    // Of this warp's 16 pixels lane l reads, of matrix l / 8: the lower or upper eight, and the
    // first or second 16 bytes of a product's.
    const int lane = threadIdx.x & 31, matrix = lane / 8;
    const int pixel = threadIdx.x / 32 * 16 + matrix % 2 * 8 + lane % 8;
    line_ = pixel * kBoxLineBytes;
    unit_ = matrix / 2;
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
      if constexpr (kRounds) {
        multiply_rounded(sums, stage);
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

  __device__ __forceinline__ void multiply_rounded(Sums& sums, int stage) {
    const uint32_t pixels = find_pixels();
    const uint32_t filters = find_filters(pixels, stage);
    const auto multiply_half = [&](Rounded& rounded, int first) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t words[4];
        load_matrices(swizzle_line(pixels + line_ + (2 * (first + i) + unit_) * 16), words);
#pragma unroll
        for (int w = 0; w < 4; ++w) rounded[i][w] = round_to_tf32(__uint_as_float(words[w]));
      }
      fence_wgmma();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Mma::multiply(sums, rounded[i],
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
  uint32_t first_pixel_;  // bytes to this warpgroup's
  uint32_t line_;         // the same, to the pixel that this lane reads
  int unit_;
  Rounded lower_, upper_;     // take no registers where nothing is rounded
  RingCursor cursor_, done_;  // next to multiply, and to give back
};

}  // namespace convx
