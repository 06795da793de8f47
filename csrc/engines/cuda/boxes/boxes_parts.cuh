// Partial sums of split-K slices. They lie in the workspace in register order, so that a warp
// stores and loads 512 contiguous bytes: [slice][piece][thread's accumulators / 4][thread][4].
#pragma once

#include "device/global_memory.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/boxes/boxes_params.h"

namespace convx {

// Calls visit(four accumulators of this thread, their address in a slice's partial sums), for
// the kFilters filters of a tile from first_filter on. tile_filters: all filters of the tile.
template <int kFilters, int kPieces, typename Visit>
__device__ __forceinline__ void visit_sums(const BoxesParams& p,
                                           WgmmaSums<kFilters> (&sums)[kPieces], int index,
                                           int first_filter, int tile_filters, const Visit& visit) {
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
__device__ __forceinline__ void leave_sums(const BoxesParams& p,
                                           WgmmaSums<kFilters> (&sums)[kPieces], int index) {
  visit_sums(p, sums, index, 0, kFilters, [](const float* own, float* part) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(own[i]);
    store_global_16_bytes(part, words);
  });
}

// Adds the slices of some of a tile's filters; tile counts those that are split. The order is
// fixed, so the result does not depend on when the slices were computed.
template <int kFilters, int kPieces>
__device__ __forceinline__ void add_parts(const BoxesParams& p,
                                          WgmmaSums<kFilters> (&sums)[kPieces], int tile,
                                          int first_filter) {
  visit_sums(p, sums, tile * p.parts, first_filter, p.tile_filters,
             [](float* own, const float* part) {
               const float4 first = *reinterpret_cast<const float4*>(part);
               own[0] = first.x, own[1] = first.y, own[2] = first.z, own[3] = first.w;
             });
#pragma unroll 4  // so that the loads of four slices are in flight at once
  for (int i = 1; i < p.parts; ++i) {
    visit_sums(p, sums, tile * p.parts + i, first_filter, p.tile_filters,
               [](float* own, const float* part) {
                 const float4 more = *reinterpret_cast<const float4*>(part);
                 own[0] += more.x, own[1] += more.y, own[2] += more.z, own[3] += more.w;
               });
  }
}

}  // namespace convx
