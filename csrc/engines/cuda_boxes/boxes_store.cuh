// The epilogue. Consumers write a tile's accumulators to shared memory, 128 bytes of filters at a
// time (a slice), in the layout of the target (boxes_staging.cuh). TMA stores a slice while the
// consumers fill the other of two buffers.
#pragma once

#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda_boxes/boxes_staging.cuh"

namespace convx {

// Staging: a class of boxes_staging.cuh or boxes_spans.cuh.
template <typename Staging, int kFilters, int kPieces>
class BoxStorer {
  static constexpr int kSliceFilters = Staging::kSliceFilters;
  static constexpr int kSliceSums = kSliceFilters / 2;  // accumulators of a thread in a slice

 public:
  __device__ __forceinline__ BoxStorer(const BoxesParams& p, const BoxesRing& ring,
                                       const void* target_map)
      : p_(p), ring_(ring), map_(target_map), staging_(p) {}

  // Prefetches the bias of one filter per thread. Call before the tile's MMAs, which hide the
  // latency.
  __device__ __forceinline__ void load_bias(int first_filter) {
    if (threadIdx.x >= kFilters) return;
    bias_ = staging_.load_bias(first_filter + static_cast<int>(threadIdx.x));
  }

  // Adds the bias and stores a tile.
  __device__ __forceinline__ void store(const WgmmaSums<kFilters> (&sums)[kPieces], int tile,
                                        int first_filter) {
    const auto place = staging_.locate(tile);
    // The previous tile's bias has been read: a barrier follows its last use.
    if (threadIdx.x < kFilters) store_element(ring_.bias + 4 * threadIdx.x, bias_);
#pragma unroll
    for (int slice = 0; slice < kFilters / kSliceFilters; ++slice) {
      const int filter = first_filter + slice * kSliceFilters;
      if (filter >= p_.group_targets) break;
      const uint32_t staged = ring_.staging + turn_ * p_.pixel_bytes;
      turn_ ^= 1;
      // Wait until TMA has read this buffer. The store from the other buffer may still be in
      // flight.
      if (threadIdx.x < 32 && elect_lane()) wait_bulk_reads<1>();
      wait_at_barrier<1, kBoxMultipliers>();
      const auto bias = staging_.read_bias(ring_.bias + 4 * slice * kSliceFilters);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        staging_.stage(place, sums[piece].value + slice * kSliceSums, bias, staged, piece);
      }
      if (has_boxes()) fence_async_proxy();
      wait_at_barrier<1, kBoxMultipliers>();
      if (!has_boxes()) {
        staging_.store_values(place, filter, staged);
      } else if constexpr (Staging::kHasBoxes) {
        if (threadIdx.x < 32 && elect_lane()) {
          staging_.store_boxes(map_, place, filter, staged);
          commit_bulk_stores();
        }
      }
    }
  }

  // Waits for all TMA stores. Call before the block ends.
  __device__ __forceinline__ void finish() const {
    if (threadIdx.x < 32 && elect_lane()) wait_bulk_stores();
  }

 private:
  __device__ __forceinline__ bool has_boxes() const {
    return Staging::kHasBoxes && p_.boxed_target;
  }

  const BoxesParams& p_;
  const BoxesRing& ring_;
  const void* const map_;
  const Staging staging_;
  float bias_ = 0.f;
  uint32_t turn_ = 0;  // the buffer to fill next
};

}  // namespace convx
