// The parameters of a call that the kernels of a weight gradient receive besides the geometry.
#pragma once

#include <cstdint>

#include "engines/cuda/weight_grad/wgrad_geometry.h"
#include "planning/boxed_tensor.h"
#include "planning/tensor_math.h"

namespace convx {

struct LaunchSite;

// How the values of a tensor are loaded.
struct OperandAccess {
  bool channels_adjacent;  // lanes of a warp take neighbouring channels, not columns
  // Channels adjacent: every 8 channels are an aligned vector. Otherwise pairs of positions are.
  bool is_vector;
};

// A number of stages as (column, row, image), each less than there are: of positions, or of the
// steps of the kernel that TMA boxes feed.
struct StageStep {
  int column, row, image;
};

struct WgradCall {
  const void *x, *y;  // tensors as the caller has them
  void* w;
  OperandAccess input_access, gradient_access;
  char *packed_x, *packed_y;  // components of the round's positions
  float* partials;            // [slice][tile][consumer][filter][column]
  HalfScales* scales;         // of scaled forms; the scale of dY follows as its only "filter"
  int64_t first_stage;        // of the round
  int64_t stages;             // of the round
  int slice_stages;           // of a slice; the first longer_slices have one more
  int longer_slices;
  int stage_step;         // from a stage of a slice to its next one: see WgradGeometry::takes_turns
  StageStep step;         // the same as the blocks' loaders count
  bool adds_to_partials;  // all rounds but the first

  // If set, the kernels return at once unless (*run_flag == 0) equals run_if_zero. The packing
  // kernel of a scaled form writes the flag, so the host never waits.
  const int* run_flag;
  bool run_if_zero;
};

// The tensor maps of operands that TMA reads in place; the others are not set.
struct WgradMaps {
  TensorMap input, gradient;
};

// Starts the kernels of a form: packing, MMAs and the reduction.
template <OperandForm kForm>
void run_wgrad(const LaunchSite& site, const WgradGeometry& geometry, WgradCall call);

}  // namespace convx
