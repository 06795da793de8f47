// The compiled tiles of the weight-gradient kernels, and their choice for a problem.
#pragma once

#include <cstdint>
#include <optional>

#include "core/device_caps.h"
#include "core/problem.h"

namespace convx {

enum class WeightGradKernel : uint8_t {
  kWide,    // weight_grad_wide.cuh
  kNarrow,  // weight_grad_narrow.cuh
  kPixels,  // weight_grad_pixels.cuh
};

struct WeightGradConfig {
  int filters, columns;
  int threads;
  WeightGradKernel kernel;
  bool float32_only;
};

inline constexpr int kPixelColumns = 64;  // channels of a tile of weight_grad_pixels.cuh
inline constexpr int kPixelTogether = 4;  // pixels that each of its lanes loads at once
// Blocks of it that a multiprocessor holds at least: registers for the accumulators decide.
constexpr int count_pixel_blocks(int filters, int64_t element_bytes) {
  return filters * 16 / element_bytes > 16 ? 2 : 3;
}

// The launch lists the same tiles in the same order.
inline constexpr WeightGradConfig kWeightGradConfigs[] = {
    {128, 128, 256, WeightGradKernel::kWide, true},
    {64, 128, 128, WeightGradKernel::kWide, false},
    {128, 64, 128, WeightGradKernel::kWide, true},
    {4, 8, 256, WeightGradKernel::kNarrow, false},
    {1, 16, 256, WeightGradKernel::kNarrow, false},
    {2, kPixelColumns, 256, WeightGradKernel::kPixels, false},
    {4, kPixelColumns, 256, WeightGradKernel::kPixels, false},
    {8, kPixelColumns, 256, WeightGradKernel::kPixels, false},
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
  bool is_transposed = false;  // the shape is that of dW's transpose: x and y change places
};

// The problem as one of its configurations computes it, transposed or not, or nothing where the
// configuration cannot.
std::optional<WeightGradShape> fit_weight_grad_config(const ConvProblem& problem,
                                                      const DeviceCaps& caps, int config);

// Returns the tile with the shortest predicted time.
WeightGradShape fit_weight_grad_shape(const ConvProblem& problem, const DeviceCaps& caps);

}  // namespace convx
