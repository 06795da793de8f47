// What the kernels of a weight gradient are told about a call, besides the geometry.
#pragma once

#include <cstdint>

#include "engines/half_scales.h"

namespace convx {

struct WgradCall {
  const void *x, *y;  // tensors as the caller has them
  void* w;
  char *packed_x, *packed_y;  // components of the round's positions
  float* partials;            // [slice][tile][consumer][filter][column]
  HalfScales* scales;         // of scaled forms; the scale of dY follows as its only "filter"
  int64_t first_stage;        // of the round
  int64_t stages;             // of the round
  bool adds_to_partials;      // all rounds but the first

  // If set, the kernels return at once unless (*gate == 0) equals runs_at_zero. The packing kernel
  // of a scaled form writes the flag, so the host never waits.
  const int* gate;
  bool runs_at_zero;
};

}  // namespace convx
