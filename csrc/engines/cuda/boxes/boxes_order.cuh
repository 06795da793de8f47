// The order in which a block takes tiles. Block b starts with tile b. Then blocks either advance by
// the grid size, or take the next tile that no block has taken, by an atomic counter. With a fixed
// stride blocks drift apart, and memory is slower the further apart concurrent accesses are. The
// order does not change how a tile is computed.
#pragma once

#include "engines/cuda/boxes/boxes_params.h"

namespace convx {

// All lanes of the producer warp call this class together.
class TileOrder {
 public:
  __device__ __forceinline__ explicit TileOrder(const BoxesParams& p)
      : p_(p), index_(static_cast<int>(blockIdx.x)) {
    int others = index_;
    kind_ = p.by_tile_kinds.split(others);
  }

  __device__ __forceinline__ int index() const { return index_; }

  // Starts the atomic for the next tile before the current tile is copied, to hide its latency.
  __device__ __forceinline__ void ask_for_next() {
    if (p_.taken != nullptr && threadIdx.x % 32 == 0) taken_ = atomicAdd(p_.taken + kind_, 1);
  }
  __device__ __forceinline__ void take_next() {
    const int step = static_cast<int>(gridDim.x);
    if (p_.taken == nullptr) {
      index_ += step;
    } else {
      const int kinds = static_cast<int>(p_.by_tile_kinds.divisor);
      index_ = step + kind_ + kinds * __shfl_sync(0xffffffff, taken_, 0);
    }
  }

 private:
  const BoxesParams& p_;
  int index_;
  int kind_;       // the tile kind of this block, see BoxesShape::tile_kinds
  int taken_ = 0;  // counter value; excludes the tiles that blocks start with
};

}  // namespace convx
