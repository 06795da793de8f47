// The epilogue. Consumers write a tile's accumulators to shared memory, 128 bytes of filters at a
// time (a slice), in the layout of the target (boxes_staging.cuh). TMA stores a slice while the
// consumers fill the other of two buffers. With own pieces (boxes_shape.h) a slice is that of one
// piece, each warpgroup has one of the buffers, and neither waits for the other.
#pragma once

#include "device/memory.cuh"
#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/boxes/boxes_staging.cuh"
#include "kernels/epilogue.cuh"

namespace convx {

// Staging: a class of boxes_staging.cuh or boxes_spans.cuh.
template <typename Staging, int kFilters, int kPieces, bool kOwnPieces>
class BoxStorer {
  static constexpr int kThreads = kOwnPieces ? kBoxMultipliers / 2 : kBoxMultipliers;
  static constexpr int kBuffers = kOwnPieces ? 1 : 2;  // that this warpgroup alternates between
  static constexpr int kSliceFilters = Staging::kSliceFilters;
  static constexpr int kSliceSums = kSliceFilters / 2;  // accumulators of a thread in a slice

 public:
  __device__ __forceinline__ BoxStorer(const BoxesParams& p, const BoxesRing& ring,
                                       const void* target_map)
      : p_(p),
        map_(target_map),
        staging_(p),
        thread_(static_cast<int>(threadIdx.x) % kThreads),
        group_(static_cast<int>(threadIdx.x) / kThreads),
        bias_at_(ring.bias + group_ * (kBoxBiasBytes / 2)),
        first_buffer_(ring.staging + group_ * p.staging_bytes) {
    static_assert(!kOwnPieces || 4 * kFilters <= kBoxBiasBytes / 2);
  }

  // Prefetches the bias of one filter per thread. Call before the tile's MMAs, which hide the
  // latency.
  __device__ __forceinline__ void load_bias(int first_filter) {
    if (thread_ >= kFilters) return;
    bias_ = staging_.load_bias(first_filter + thread_);
  }

  // Finishes and stores a tile.
  __device__ __forceinline__ void store(const WgmmaSums<kFilters> (&sums)[kPieces], int tile,
                                        int first_filter) {
    const auto place = staging_.locate(tile);
    if (is_missing(place)) return;
    // The previous tile's bias has been read: a barrier follows its last use.
    if (thread_ < kFilters) store_element(bias_at_ + 4 * thread_, bias_);
#pragma unroll
    for (int slice = 0; slice < kFilters / kSliceFilters; ++slice) {
      const int filter = first_filter + slice * kSliceFilters;
      if (filter >= p_.group_targets) break;
      const uint32_t staged = take_buffer();
      const auto bias = staging_.read_bias(bias_at_ + 4 * slice * kSliceFilters);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        float values[kSliceSums];
#pragma unroll
        for (int i = 0; i < kSliceSums; ++i) {
          values[i] = sums[piece].value[slice * kSliceSums + i] + bias.value[i / 4 * 2 + i % 2];
        }
        // A branch: more instructions for every value made bf16 layers up to 9% slower.
        if (p_.lowest == 0) all_at_least(values, 0);
        staging_.stage(place, values, staged, piece);
      }
      if (has_boxes()) fence_async_proxy();
      wait_for_others();
      store_slice(place, filter, staged);
      commit();
    }
  }

  // Stores a tile that no tap reaches: all slices from one buffer of zeros. This path has no
  // accumulators, because the compiler serializes MMAs if other instructions write theirs.
  __device__ __forceinline__ void store_zeros(int tile, int first_filter) {
    const auto place = staging_.locate(tile);
    if (is_missing(place)) return;
    const uint32_t staged = take_buffer();
    constexpr uint32_t kZeros[4] = {};
    for (int i = 16 * thread_; i < p_.staging_bytes; i += 16 * kThreads) {
      store_16_bytes(staged + i, kZeros);
    }
    if (has_boxes()) fence_async_proxy();
    wait_for_others();
    const int end = min(first_filter + kFilters, p_.group_targets);
#pragma unroll 1
    for (int filter = first_filter; filter < end; filter += kSliceFilters) {
      store_slice(place, filter, staged);
    }
    commit();
  }

  // Waits for all TMA stores. Call before the block ends.
  __device__ __forceinline__ void finish() const {
    if (thread_ < 32 && elect_lane()) wait_bulk_stores();
  }

 private:
  __device__ __forceinline__ bool has_boxes() const {
    return Staging::kHasBoxes && p_.boxed_target;
  }

  // True if the last tile has no box for this warpgroup.
  template <typename Place>
  __device__ __forceinline__ bool is_missing(const Place& place) const {
    if constexpr (kOwnPieces) return place.image >= p_.images;
    return false;
  }

  // Waits for the other threads that fill the buffer.
  __device__ __forceinline__ void wait_for_others() const {
    if constexpr (kOwnPieces) {
      wait_at_barrier(kFirstPieceBarrier + group_, kThreads);
    } else {
      wait_at_barrier<1, kThreads>();
    }
  }

  // Waits until TMA has read the buffer that is next in turn, and returns its address. The store
  // from the other buffer may still be in flight.
  __device__ __forceinline__ uint32_t take_buffer() {
    const uint32_t buffer = first_buffer_ + turn_ * p_.staging_bytes;
    if constexpr (kBuffers > 1) turn_ ^= 1;
    if (thread_ < 32 && elect_lane()) wait_bulk_reads<kBuffers - 1>();
    wait_for_others();
    return buffer;
  }
  template <typename Place>
  __device__ __forceinline__ void store_slice(const Place& place, int filter,
                                              uint32_t staged) const {
    if (!has_boxes()) {
      staging_.store_values(place, filter, staged);
    } else if constexpr (Staging::kHasBoxes) {
      if (thread_ < 32 && elect_lane()) staging_.store_boxes(map_, place, filter, staged);
    }
  }
  // Call after the last slice that was stored from a buffer.
  __device__ __forceinline__ void commit() const {
    if (has_boxes() && thread_ < 32 && elect_lane()) commit_bulk_stores();
  }

  const BoxesParams& p_;
  const void* const map_;
  const Staging staging_;
  // This thread among those that store the same slice, and the number of its warpgroup (0 for all
  // unless kOwnPieces).
  const int thread_, group_;
  const uint32_t bias_at_, first_buffer_;  // shared-memory addresses
  float bias_ = 0.f;
  uint32_t turn_ = 0;  // the buffer to fill next
};

// Split-K: the partial sums of a slice lie in the workspace in register order, so that a warp
// stores and loads 512 contiguous bytes: [slice][piece][thread's accumulators / 4][thread][4].

// Calls visit(four accumulators of this thread, their address in a slice's partial sums), for
// the kFilters filters of a tile from first_filter on. tile_filters: all filters of the tile.
template <int kFilters, int kPieces, typename Visit>
__device__ __forceinline__ void visit_slice_sums(const BoxesParams& p,
                                                 WgmmaSums<kFilters> (&sums)[kPieces], int index,
                                                 int first_filter, int tile_filters,
                                                 const Visit& visit) {
  constexpr int kFour = 4 * kBoxMultipliers;  // from four accumulators to the next four
  // One base, so that the addresses differ by constants only.
  float* const part = p.sums + static_cast<int64_t>(index) * (kPieces * kBoxPixels * tile_filters) +
                      (first_filter / 8 * kFour + 4 * static_cast<int>(threadIdx.x));
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < kFilters / 8; ++i) {
      visit(sums[piece].value + 4 * i, part + (piece * tile_filters / 8 + i) * kFour);
    }
  }
}

template <int kFilters, int kPieces>
__device__ __forceinline__ void store_slice_sums(const BoxesParams& p,
                                                 WgmmaSums<kFilters> (&sums)[kPieces], int index) {
  visit_slice_sums(p, sums, index, 0, kFilters, [](const float* own, float* part) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(own[i]);
    store_global_16_bytes(part, words);
  });
}

// Adds the slices of some of a tile's filters; tile counts those that are split. The order is
// fixed, so the result does not depend on when the slices were computed.
template <int kFilters, int kPieces>
__device__ __forceinline__ void add_slices(const BoxesParams& p,
                                           WgmmaSums<kFilters> (&sums)[kPieces], int tile,
                                           int first_filter) {
  visit_slice_sums(p, sums, tile * p.parts, first_filter, p.tile_filters,
                   [](float* own, const float* part) {
                     const float4 first = *reinterpret_cast<const float4*>(part);
                     own[0] = first.x, own[1] = first.y, own[2] = first.z, own[3] = first.w;
                   });
#pragma unroll 4  // so that the loads of four slices are in flight at once
  for (int i = 1; i < p.parts; ++i) {
    visit_slice_sums(p, sums, tile * p.parts + i, first_filter, p.tile_filters,
                     [](float* own, const float* part) {
                       const float4 more = *reinterpret_cast<const float4*>(part);
                       own[0] += more.x, own[1] += more.y, own[2] += more.z, own[3] += more.w;
                     });
  }
}

}  // namespace convx
