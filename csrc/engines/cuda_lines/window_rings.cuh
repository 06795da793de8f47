// What a block's warps hand to each other, in shared memory:
//
//   source ring   [stage][plane][position][lane_bytes]              bulk copy   -> multipliers
//   filter ring   [stage][tap][half][plane][64][lane_bytes]         bulk copy   -> multipliers
//   staging       [warpgroup][64 filters][staging_pitch]            multipliers -> storing warps
//
// Where blocks walk (line_walk.cuh), stages of the source are stretches of a ring of positions,
// which two warps turn.
#pragma once

#include "device/mbarrier.cuh"
#include "engines/cuda_lines/window_params.h"

namespace convx {

// Shared-memory addresses of a block's barriers and rings.
struct WindowRings {
  uint32_t source_full, source_empty, filter_full, filter_empty;  // barriers, 8 bytes each
  uint32_t staging_full, staging_empty;                           // of each warpgroup
  uint32_t raw_full;                                              // of stretches not turned yet
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
    // Whoever has written or read arrives: one lane for its warp would do, but racecheck does not
    // see that.
    for (int i = 0; i < 2; ++i) {
      init_barrier(staging_full + 8 * i, 128);
      init_barrier(staging_empty + 8 * i, 32);
    }
    for (int i = 0; i < 2 * p.raw_stretches; ++i) init_barrier(raw_full + 8 * i, 1);
    fence_barrier_init();
  }
};

}  // namespace convx
