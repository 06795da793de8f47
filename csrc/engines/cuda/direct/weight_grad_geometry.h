// The geometry of the weight-gradient kernels: their compiled tiles, what the planner chooses among
// them, and the parameters that the kernels read from constant memory. Plain host code.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"
#include "engines/cuda/direct/gather_geometry.h"

namespace convx {

struct WeightGradParams {
  const void* x;
  const void* y;
  void* w;
  void* partial;  // [split][tile][filter of tile][column of tile], accumulation type
  Strides x_strides, y_strides;
  Strides w_strides;  // n: filters, c: channels, h: r, w: s
  int64_t pixels;     // N * P * Q
  int64_t pixels_per_split;
  int H, W, P, Q, R, S;
  int channels, filters;  // per group
  int stride_h, stride_w, dilation_h, dilation_w, pad_top, pad_left;
  int filter_tiles, column_tiles;
  int64_t first_tile;  // first tile of this launch, of [group][filter tile][column tile]
  int tiles;
  int splits;
  bool direct;  // there is no workspace and one split: the kernel writes w itself
  FastDivmod by_P, by_Q;
  // Elements from each pixel to the next over all images, where that is constant in both tensors
  // and output pixel i reads input pixel i; otherwise 0. weight_grad_pixels.cu only.
  int64_t x_pitch, y_pitch;
  bool x_has_units;  // true: the channels of a pixel are read 16 bytes at a time
};

enum class WeightGradKernel : uint8_t {
  kWide,    // weight_grad_tiles.cu
  kNarrow,  // weight_grad_tiles.cu
  kPixels,  // weight_grad_pixels.cu
};

struct WeightGradConfig {
  int filters, columns;
  int threads;
  WeightGradKernel kernel;
  bool float32_only;

  constexpr bool operator==(const WeightGradConfig&) const = default;
};

inline constexpr int kPixelColumns = 64;  // channels of a tile of weight_grad_pixels.cu
inline constexpr int kPixelTogether = 4;  // pixels that each of its lanes loads at once
// Blocks of it that a multiprocessor holds at least: registers for the accumulators decide.
constexpr int count_pixel_blocks(int filters, int64_t element_bytes) {
  return filters * 16 / element_bytes > 16 ? 2 : 3;
}

// The tiles that kernels are compiled for. Plans hold an index into this list.
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

// A fitted weight gradient, ready to launch except for its buffers.
struct WeightGradFit {
  WeightGradShape shape;
  WeightGradParams params;  // without buffers and without the slice of tiles

  void describe(Text& out) const;
};

struct DirectPlan {
  static constexpr EngineId kEngines[] = {EngineId::kCudaDirect};

  std::variant<GatherShape, WeightGradFit> pass;

  void describe(Text& out) const;
};

WeightGradFit make_weight_grad_fit(const ConvProblem& problem, const WeightGradShape& shape);

// The kernels are compiled in two files: those of WeightGradKernel::kPixels, and the others.
// buffers.workspace has fit.shape.workspace_bytes.
void launch_weight_grad_pixels(const LaunchSite& site, const WeightGradFit& fit,
                               const Buffers& buffers);
void launch_weight_grad_tiles(const LaunchSite& site, const WeightGradFit& fit,
                              const Buffers& buffers);

}  // namespace convx
