// How the MMA warps pass the staging buffer (staging.cuh) to the store warps and get it back.
#pragma once

#include "device/mbarrier.cuh"
#include "engines/cuda/lines/staging.cuh"
#include "engines/cuda/lines/window_rings.cuh"

namespace convx {

// One warpgroup's share of a tile.
struct TileShare {
  int window, filter;  // first position, and first filter within its group

  __device__ __forceinline__ TileShare(const WindowParams& p, const TilePlace& tile,
                                       int warpgroup) {
    const bool same_window = p.filter_groups == 2;
    window = tile.first + (same_window ? 0 : warpgroup * p.second_window);
    filter = tile.filter + (same_window ? warpgroup * kWindowFilters : 0);
  }
};

template <typename Element>
__device__ __forceinline__ StoreTarget<Element> find_whole_target(const WindowParams& p) {
  return {static_cast<Element*>(p.target), p.target_n, p.target_c, p.target_h, p.target_w};
}

template <typename Out, int kColumns, Pace kPace>
__device__ __forceinline__ Out* find_staging(const WindowParams& p, char* memory, int warpgroup) {
  return reinterpret_cast<Out*>(memory + p.staging_offset) +
         warpgroup * kWindowFilters * kStagingPitch<Out, kColumns, kPace>;
}

// The side of an MMA warpgroup.
class StagingTurns {
 public:
  __device__ __forceinline__ StagingTurns(const WindowRings& rings, int warpgroup)
      : full_(rings.staging_full + 8 * warpgroup), empty_(rings.staging_empty + 8 * warpgroup) {}

  // Waits until the store warp has read the previous part.
  __device__ __forceinline__ void wait() {
    wait_barrier(empty_, parity_);
    parity_ ^= 1;
  }
  __device__ __forceinline__ void hand_over() const {
    fence_async_proxy();  // every thread's results must be visible to the bulk copies
    arrive(full_);
  }

 private:
  const uint32_t full_, empty_;
  uint32_t parity_ = 1;
};

// The side of the store warp.
class StoringTurns {
 public:
  __device__ __forceinline__ StoringTurns(const WindowRings& rings, int warpgroup)
      : full_(rings.staging_full + 8 * warpgroup), empty_(rings.staging_empty + 8 * warpgroup) {}

  __device__ __forceinline__ void wait() const { wait_barrier(full_, parity_); }
  __device__ __forceinline__ void give_back() {
    parity_ ^= 1;
    arrive(empty_);
  }

 private:
  const uint32_t full_, empty_;
  uint32_t parity_ = 0;
};

}  // namespace convx
