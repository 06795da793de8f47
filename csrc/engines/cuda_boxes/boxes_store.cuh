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
      const uint32_t staged = take_buffer();
      const auto bias = staging_.read_bias(ring_.bias + 4 * slice * kSliceFilters);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        staging_.stage(place, sums[piece].value + slice * kSliceSums, bias, staged, piece);
      }
      if (has_boxes()) fence_async_proxy();
      wait_at_barrier<1, kBoxMultipliers>();
      store_slice(place, filter, staged);
      commit();
    }
  }

  // Stores a tile that no tap reaches: all slices from one buffer of zeros. This path has no
  // accumulators, because the compiler serializes MMAs if other instructions write theirs.
  __device__ __forceinline__ void store_zeros(int tile, int first_filter) {
    const auto place = staging_.locate(tile);
    const uint32_t staged = take_buffer();
    constexpr uint32_t kZeros[4] = {};
    for (int i = 16 * threadIdx.x; i < p_.pixel_bytes; i += 16 * kBoxMultipliers) {
      store_16_bytes(staged + i, kZeros);
    }
    if (has_boxes()) fence_async_proxy();
    wait_at_barrier<1, kBoxMultipliers>();
    const int end = min(first_filter + kFilters, p_.group_targets);
#pragma unroll 1
    for (int filter = first_filter; filter < end; filter += kSliceFilters) {
      store_slice(place, filter, staged);
    }
    commit();
  }

  // Waits for all TMA stores. Call before the block ends.
  __device__ __forceinline__ void finish() const {
    if (threadIdx.x < 32 && elect_lane()) wait_bulk_stores();
  }

 private:
  __device__ __forceinline__ bool has_boxes() const {
    return Staging::kHasBoxes && p_.boxed_target;
  }

  // Waits until TMA has read the buffer that is next in turn, and returns its address. The store
  // from the other buffer may still be in flight.
  __device__ __forceinline__ uint32_t take_buffer() {
    const uint32_t buffer = ring_.staging + turn_ * p_.pixel_bytes;
    turn_ ^= 1;
    if (threadIdx.x < 32 && elect_lane()) wait_bulk_reads<1>();
    wait_at_barrier<1, kBoxMultipliers>();
    return buffer;
  }
  template <typename Place>
  __device__ __forceinline__ void store_slice(const Place& place, int filter,
                                              uint32_t staged) const {
    if (!has_boxes()) {
      staging_.store_values(place, filter, staged);
    } else if constexpr (Staging::kHasBoxes) {
      if (threadIdx.x < 32 && elect_lane()) staging_.store_boxes(map_, place, filter, staged);
    }
  }
  // Call after the last slice that was stored from a buffer.
  __device__ __forceinline__ void commit() const {
    if (has_boxes() && threadIdx.x < 32 && elect_lane()) commit_bulk_stores();
  }

  const BoxesParams& p_;
  const BoxesRing& ring_;
  const void* const map_;
  const Staging staging_;
  float bias_ = 0.f;
  uint32_t turn_ = 0;  // the buffer to fill next
};

}  // namespace convx
