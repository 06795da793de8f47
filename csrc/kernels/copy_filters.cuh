// The filter producer: one thread keeps a ring of packed filters full by bulk copies.
//   packed [filter tile][chunk][step][step_bytes], copied stage_steps at a time
// The packed layout is the one that the tensor cores read.
#pragma once

#include "device/mbarrier.cuh"

namespace convx {

// Called by one thread. Params has the tiles, which locate_tile finds, and the number of stages;
// Rings has the shared-memory addresses.
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
