// Producers: ways to fill a stage of shared memory that several families share.
#pragma once

#include "device/mbarrier.cuh"
#include "device/memory.cuh"
#include "device/mma.cuh"

namespace convx {

// Loads 16 bytes of a tensor whose address is not a multiple of 16, which therefore has no tensor
// map, and writes them to shared memory: the first `left` 16-bit words from memory, then zeros.
// With kRounds the words are float32 values and are rounded to TF32.
template <bool kRounds = false>
__device__ __forceinline__ void gather_unit(const uint16_t* from, int left, uint32_t to) {
  uint32_t words[4] = {};
#pragma unroll
  for (int w = 0; w < 8; ++w) {
    if (w < left) words[w / 2] |= static_cast<uint32_t>(from[w]) << w % 2 * 16;
  }
  if constexpr (kRounds) {
#pragma unroll
    for (uint32_t& word : words) word = round_to_tf32(__uint_as_float(word));
  }
  store_16_bytes(to, words);
}

// The filter producer: one thread keeps a ring of packed filters full by bulk copies.
//   packed [filter tile][chunk][step][step_bytes], copied stage_steps at a time
// The packed layout is the one that the tensor cores read. Params has the tiles, which locate_tile
// finds, and the number of stages; Rings has the shared-memory addresses.
template <typename Params, typename Rings>
__device__ __forceinline__ void copy_filters(const Params& p, const Rings& rings, int steps,
                                             int stage_steps, int step_bytes) {
  RingCursor cursor;
  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const auto tile = locate_tile(p, index);
    for (int chunk = tile.chunk; chunk < tile.chunk_end; ++chunk) {
      const char* from =
          static_cast<const char*>(p.packed) +
          (static_cast<int64_t>(tile.filter_tile) * p.chunks + chunk) * steps * step_bytes;
      for (int step = 0; step < steps; step += stage_steps) {
        const uint32_t bytes = min(stage_steps, steps - step) * step_bytes;
        const uint32_t full = rings.filter_full + 8 * cursor.slot;
        wait_barrier(rings.filter_empty + 8 * cursor.slot, cursor.parity ^ 1);
        arrive_expecting(full, bytes);
        bulk_copy(rings.filters + cursor.slot * (stage_steps * step_bytes), from, bytes, full);
        from += bytes;
        cursor.advance(p.filter_stages);
      }
    }
    if (p.resident) return;  // all tiles use the filters that are loaded now
  }
}

}  // namespace convx
