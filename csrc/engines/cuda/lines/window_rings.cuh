// The buffers in shared memory through which a block's warps exchange data:
//
//   source ring   [stage][component][position][lane_bytes]             producer -> MMA warps
//   filter ring   [stage][tap][half][component][64][lane_bytes]        producer -> MMA warps
//   staging       [warpgroup][64 filters][staging_pitch]               MMA warps -> store warps
//
// half: of 128 filters, if the MMA warpgroups share a window.
//   -> store warps
//
// In streaming blocks (line_walk.cuh) the source ring is a ring of positions, and its stages are
// the stretches that two warps transpose into it.
#pragma once

#include "device/mbarrier.cuh"
#include "engines/cuda/lines/window_params.h"

namespace convx {

// Shared-memory addresses of a block's barriers and rings. "full" barriers tell the consumer that a
// stage was filled; "empty" barriers tell the producer that it was released.
struct WindowRings {
  uint32_t source_full, source_empty, filter_full, filter_empty;  // 8 bytes each
  uint32_t staging_full, staging_empty;                           // one per warpgroup
  uint32_t raw_full;  // raw stretches, before they are transposed
  uint32_t source, filters;
  uint32_t source_stage_bytes, filter_stage_bytes, tap_bytes;

  __device__ __forceinline__ WindowRings(const WindowParams& p, uint32_t memory, int planes) {
    source_full = memory;
    source_empty = source_full + 8 * p.source_stages;
    filter_full = source_empty + 8 * p.source_stages;
    filter_empty = filter_full + 8 * p.filter_stages;
    staging_full = filter_empty + 8 * p.filter_stages;
    staging_empty = staging_full + 8 * 2;
    raw_full = staging_empty + 8 * 2;
    source = memory + p.source_offset;
    filters = memory + p.filter_offset;
    source_stage_bytes = p.plane_bytes * planes;
    tap_bytes = p.filter_groups * planes * kWindowFilters * p.lane_bytes;
    filter_stage_bytes = p.stage_taps * tap_bytes;
  }

  __device__ __forceinline__ void init(const WindowParams& p) const {
    constexpr int kMultiplierWarps = 8;
    for (int i = 0; i < p.source_stages; ++i) {
      init_barrier(source_full + 8 * i, p.walks ? 32 : 1);
      init_barrier(source_empty + 8 * i, kMultiplierWarps);
    }
    for (int i = 0; i < p.filter_stages; ++i) {
      init_barrier(filter_full + 8 * i, 1);
      init_barrier(filter_empty + 8 * i, kMultiplierWarps);
    }
    // Every thread that wrote or read the staging arrives. One lane per warp would do, but then
    // compute-sanitizer's racecheck reports false hazards.
    for (int i = 0; i < 2; ++i) {
      init_barrier(staging_full + 8 * i, 128);
      init_barrier(staging_empty + 8 * i, 32);
    }
    for (int i = 0; i < 2 * p.raw_stretches; ++i) init_barrier(raw_full + 8 * i, 1);
    fence_barrier_init();
  }
};

}  // namespace convx
