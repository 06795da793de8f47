// Which tiles a block takes. All start with tiles next to each other, block b with tile b. Then
// they take either every so manieth, or the first that none has taken: where blocks fall behind
// others, what is read and written at a time would lie far apart in memory, which makes it slower.
// Neither way changes how a tile is computed.
#pragma once

#include "engines/cuda_boxes/boxes_params.h"

namespace convx {

// Of a warp, whose lanes all call.
class TileOrder {
 public:
  __device__ __forceinline__ explicit TileOrder(const BoxesParams& p)
      : p_(p), index_(static_cast<int>(blockIdx.x)) {
    int others = index_;
    kind_ = p.by_tile_kinds.split(others);
  }

  __device__ __forceinline__ int index() const { return index_; }

  // Which tile is next takes its time to know: it is asked for before the present one is copied.
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
  int kind_;       // of the tiles that the block may take, see BoxesShape
  int taken_ = 0;  // of the kind, behind those that all blocks start with
};

}  // namespace convx
