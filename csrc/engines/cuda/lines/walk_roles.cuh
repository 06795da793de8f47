// The main loops of streaming blocks (Pace::kWalk, Pace::kCarry), which take neighbouring tiles.
// All tiles have the same filters and one chunk, and there is no split-K. The transposing warps are
// in line_walk.cuh.
#pragma once

#include "engines/cuda/lines/carry_storer.cuh"
#include "engines/cuda/lines/line_walk.cuh"
#include "engines/cuda/lines/staging_turns.cuh"
#include "engines/cuda/lines/sum_stager.cuh"
#include "engines/cuda/lines/sum_storer.cuh"
#include "engines/cuda/lines/window_multiply.cuh"

namespace convx {

template <TensorMath kMath, int kColumns, Pace kPace>
__device__ __forceinline__ void multiply_walk(const WindowParams& p, const WindowRings& rings,
                                              const int* taps, char* memory) {
  using Multiplier = WindowMultiplier<kMath, kColumns, LineReader>;
  using Element = typename TensorTypes<kMath>::Element;
  using Stager = SumStager<kMath, kColumns, kPace, Element, Element>;
  static_assert(kPace != Pace::kCarry || kParts<Element, kColumns> == 1);
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  const TileRange tiles = find_tiles<true>(p);
  Multiplier multiplier(p, rings, taps, warpgroup, tiles);
  const StoreTarget<Element> target = find_whole_target<Element>(p);
  const TileShare first(p, locate_tile<true>(p, tiles.first), warpgroup);
  Stager stager(p, target, 0, first.filter, static_cast<const Element*>(p.bias),
                find_staging<Element, kColumns, kPace>(p, memory, warpgroup));
  StagingTurns turns(rings, warpgroup);
  int bytes_before = 0;  // bytes per filter of the previous tile's first run, for kCarry
  for (int index = tiles.first; index < tiles.end; ++index) {
    const TilePlace tile = locate_tile<true>(p, index);
    const bool more = index + 1 < tiles.end;
    WgmmaSums<kColumns> sums;
    typename Multiplier::Chains chains;
    // Done before the warpgroup waits for its turn, so that it overlaps with the other one's MMAs.
    stager.start_window(TileShare(p, tile, warpgroup).window);
    multiplier.multiply(tile, chains, sums, more);
    multiplier.finish(chains, sums);
    stager.add_bias(sums.value);
    stager.visit_parts([&]<int kPart>() {
      if constexpr (kPace == Pace::kCarry) {
        const typename Stager::Rest rest = stager.load_rest(bytes_before);
        turns.wait();
        stager.store_rest(rest);
        bytes_before = stager.run().bytes();
      } else {
        turns.wait();
      }
      stager.template stage<kPart>(sums.value);
      turns.hand_over();
    });
  }
}

template <TensorMath kMath, int kColumns, Pace kPace>
__device__ __forceinline__ void store_walk(const WindowParams& p, const WindowRings& rings,
                                           char* memory, int warpgroup) {
  using Element = typename TensorTypes<kMath>::Element;
  constexpr int kCount = kParts<Element, kColumns>;
  const StoreTarget<Element> target = find_whole_target<Element>(p);
  Element* const staging = find_staging<Element, kColumns, kPace>(p, memory, warpgroup);
  StoringTurns turns(rings, warpgroup);
  const auto wait = [&] {
    turns.wait();
    return false;
  };
  const TileRange tiles = find_tiles<true>(p);
  // Calls store(tile, part, more) for each part of each tile; more: the block has further tiles.
  const auto store_parts = [&](const auto& store) {
    for (int index = tiles.first; index < tiles.end; ++index) {
      const TilePlace tile = locate_tile<true>(p, index);
#pragma unroll 1
      for (int part = 0; part < kCount; ++part) {
        store(tile, part, index + 1 < tiles.end);
        __syncwarp();
        turns.give_back();
      }
    }
  };
  if constexpr (kPace == Pace::kCarry) {
    CarryStorer<kColumns, Element> storer(p, target, warpgroup * kWindowFilters, staging);
    store_parts(
        [&](const TilePlace& tile, int, bool more) { storer.store(tile.first, more, wait); });
  } else {
    store_parts([&](const TilePlace& tile, int part, bool) {
      const TileShare share(p, tile, warpgroup);
      const SumStorer<kMath, kColumns, kPace, Element, Element> storer(
          p, target, tile, share.window, share.filter, nullptr, staging, nullptr);
      storer.store(part, wait);
    });
  }
  if (elect_lane()) wait_bulk_stores();
}

}  // namespace convx
