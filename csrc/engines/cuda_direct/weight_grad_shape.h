// The compiled tiles of the weight-gradient kernels, and their choice for a problem.
#pragma once

#include <cstdint>

#include "core/device_caps.h"
#include "core/problem.h"

namespace convx {

struct WeightGradConfig {
  int filters, columns;
  int threads;
  bool wide;
  bool float32_only;
};

// The launch lists the same tiles in the same order.
inline constexpr WeightGradConfig kWeightGradConfigs[] = {
    {128, 128, 256, true, true}, {64, 128, 128, true, false}, {128, 64, 128, true, true},
    {4, 8, 256, false, false},   {1, 16, 256, false, false},
};
inline constexpr int kWeightGradConfigCount =
    sizeof(kWeightGradConfigs) / sizeof(kWeightGradConfigs[0]);

struct WeightGradShape {
  int config = -1;
  int64_t filter_tiles = 1, column_tiles = 1;
  int64_t tiles = 1;  // tiles of all groups
  int64_t split = 1;  // split-K slices of the pixels
  int64_t pixels_per_split = 0;
  int64_t tiles_per_launch = 1;  // as many as the workspace holds partial sums for
  bool direct = false;           // not even the partial sums of one tile fit in the workspace
  int64_t workspace_bytes = 0;
  double microseconds = 0;
};

// Returns the tile with the shortest predicted time.
WeightGradShape fit_weight_grad_shape(const ConvProblem& problem, const DeviceCaps& caps);

}  // namespace convx
