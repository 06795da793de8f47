// Geometry of the depthwise weight gradients: what kernels receive, and the fits that hold it.
// Plain data and host code.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"
#include "engines/cuda/depthwise/depthwise_geometry.h"
#include "planning/boxed_tensor.h"

namespace convx {

// The strip weight gradient: a block sums over some of the strips of one pair, of a filter and a
// channel of its group. A depthwise layer has one pair for each filter.
struct StripWeightGradParams {
  DepthwiseTensors t;  // as in the forward pass, except that the target is an input
  float* partials;     // [split][filter][channel][tap]
  int64_t partial_stride;
  int items, items_per_split;  // strips of all images, per pair; strips of one block
  int segment_rows;
  int group_channels;
  FastDivmod by_strips, by_segments, by_pairs, by_group_channels;
  FastDivmod by_multiplier;  // filters of a group
};

// The tiled weight gradient (pixel_weight_grad_kernel.cuh): a block sums for one chunk of channels
// and one group of at most taps x taps taps.
struct PixelGradCore {  // a compiled kernel
  int taps, stride;

  bool operator==(const PixelGradCore&) const = default;
};
inline constexpr PixelGradCore kPixelGradCores[] = {{3, 2}, {5, 2}, {3, 1}, {5, 1}, {7, 1}};
constexpr int kPixelGradThreads = 256;  // per block, at most
constexpr int kPixelGradColumns = 4;    // output columns of a thread
constexpr int kPixelGradMostStages = 4;
constexpr int kPixelGradBarrierBytes = 128;  // at the start of shared memory; a multiple of 128
// Channels of a thread, rows of dY that a step multiplies, and resident blocks (by registers).
constexpr int pixel_grad_channels(int taps) { return taps == 3 ? 2 : 1; }
constexpr int pixel_grad_window(int taps, int stride) { return (taps + stride - 1) / stride; }
constexpr int pixel_grad_blocks(int taps) { return taps == 7 ? 2 : 3; }
struct PixelWeightGradParams {
  // This is as in the forward pass, except that the target is an input. Along each axis the source
  // position of output b * lanes + lane and tap m * classes + cls is
  //     period * (b * core stride + m) + lane * source_step + cls * offset_step + offset0 .
  DepthwiseTensors t;
  float* partials;  // [split][filter][tap]
  int64_t partial_stride;
  int taps;
  int items, splits;               // split i sums items i, i + splits, ...
  int segment_rows, tile_columns;  // outputs of an item, per lane
  int chunk, vectors, strips;      // channels of a block; threads: vectors of channels x strips
  int group_rows, group_columns;   // taps of a group, in one class
  int stages, stage_elements;      // number of stages, and elements of each
  int target_offset;               // start of dY in a stage, in elements
  int row_pixels, pitch;           // source pixels of a row; elements between pixels
  // One thread copies all rows, as TMA boxes of row_pixels or tile_columns pixels.
  bool uses_boxes;
  // Otherwise: elements per copy. The block copies pixel_units units of each of pixel_lanes pixels
  // at once.
  int unit, pixel_units, pixel_lanes;
  // True in NCHW. Then the block copies pixel_lanes pixels of each of line_lanes lines at once,
  // element by element; a line is a row of one channel.
  bool in_planes;
  int line_lanes;
  FastDivmod by_chunks, by_row_groups, by_column_groups;
  FastDivmod by_tiles, by_column_lanes, by_segments, by_row_lanes;  // decompose an item
  FastDivmod by_vectors, by_pixel_units, by_row_pixels, by_tile_columns;
  FastDivmod by_pixel_lanes, by_chunk;
};

// The tensors of that kernel if it uses boxes: of one row, chunk channels, and row_pixels or
// tile_columns pixels.
struct PixelGradMaps {
  TensorMap source, target;
};

// The weight gradient that keeps rows of taps in registers (row_weight_grad_kernel.cuh).
struct RowGradCore {  // a compiled kernel: taps along both axes, and their common stride
  int taps, stride;

  bool operator==(const RowGradCore&) const = default;
};
inline constexpr RowGradCore kRowGradCores[] = {{5, 1}, {5, 2}, {7, 1}};
constexpr int kRowGradThreads = 512;                                        // per block, at most
constexpr int kRowGradChannels = 2;                                         // of a thread
constexpr int row_grad_columns(int stride) { return stride == 1 ? 7 : 4; }  // outputs of an item
struct RowWeightGradParams {
  DepthwiseTensors t;  // as in the forward pass, except that the target is an input
  void* result;        // dW, written if there is one split
  float* partials;     // [split][filter][tap] otherwise
  int64_t partial_stride;
  int splits, items, split_items;  // items: rows x column tiles x images
  int chunk;                       // channels of a block
  int slices, slice_threads;       // threads of a slice: vectors of two channels x rows of taps
  FastDivmod by_chunks, by_vectors, by_slice_threads;
  FastDivmod by_rows, by_tiles;  // decompose an item
};

// Launch size and predicted time of either kernel.
struct WeightGradCost {
  int64_t blocks = 0;  // 0: no kernel serves the problem
  int64_t splits = 0;  // partial sums per weight
  int64_t shared_bytes = 0, workspace_bytes = 0;
  double microseconds = 0;
};

struct StripWeightGradFit : WeightGradCost {
  int shape = -1;  // index in kStripShapes (strip_shapes.h)
  int columns = 0;
  // True if both tensors are aligned to a thread's loads; known only at launch. Otherwise
  // unaligned_weight_grad_kernel computes the same sums in the same order.
  bool aligned = true;
  StripWeightGradParams params{};

  void describe(Text& out) const;
};

// The channels_last kernel that keeps rows of taps in registers. With one split it writes dW
// itself.
struct RowWeightGradFit : WeightGradCost {
  int core = -1;  // index in kRowGradCores
  int threads = 0;
  RowWeightGradParams params{};
};

// The tiled kernel, for channels_last and for kernel sizes without strips.
struct PixelWeightGradFit : WeightGradCost {
  int core = -1;  // index in kPixelGradCores
  int threads = 0;
  PixelWeightGradParams params{};
  // Filled if it is predicted to be faster; it takes precedence if the buffers are aligned for it.
  // The workspace is then large enough for either kernel.
  RowWeightGradFit rows;

  void describe(Text& out) const;
};

// `forward` is the problem with its pass set to forward.
StripWeightGradFit fit_strip_weight_grad(const ConvProblem& forward, const DeviceCaps& caps);
PixelWeightGradFit fit_pixel_weight_grad(const ConvProblem& forward, const DeviceCaps& caps);
// The result has no blocks if no kernel serves the problem.
RowWeightGradFit fit_row_weight_grad(const ConvProblem& forward, const DeviceCaps& caps);

using DepthwiseWeightGradFit = std::variant<StripWeightGradFit, PixelWeightGradFit>;
// Returns the kernel that serves the problem's layout. The result has no blocks if none does.
DepthwiseWeightGradFit fit_depthwise_weight_grad(const ConvProblem& problem,
                                                 const DeviceCaps& caps);

// One of them is planned: a forward pass or what has its form, a strided input gradient, or a
// weight gradient.
struct DepthwisePlan {
  static constexpr EngineId kEngines[] = {EngineId::kCudaDepthwise};

  std::variant<DepthwiseFit, PhaseStripFit, DepthwiseWeightGradFit> pass;

  void describe(Text& out) const;
};

// Complete the fits with the buffers of one call.
StripWeightGradFit make_strip_weight_grad(const ConvProblem& problem, const StripWeightGradFit& fit,
                                          const Buffers& buffers);
PixelWeightGradParams make_pixel_weight_grad_params(const ConvProblem& problem,
                                                    const PixelWeightGradFit& fit,
                                                    const Buffers& buffers);
// Returns nothing if the fit has no such kernel or the buffers are not aligned for it.
std::optional<RowWeightGradParams> make_row_weight_grad_params(const ConvProblem& problem,
                                                               const RowWeightGradFit& fit,
                                                               const Buffers& buffers);

// The second kernel, which adds the partial sums in the workspace (weight_grad_sums.cu).
constexpr int kWeightGradSumsThreads = 256;
constexpr int kWeightGradSumsWeights = 32;                        // per block
constexpr int kWeightGradSumsBytes = kWeightGradSumsThreads * 4;  // of shared memory
struct WeightGradSums {
  const float* partials;  // [split][weight]
  void* target;
  int64_t weights;  // filters * channels * rows * columns
  int64_t target_k, target_c, target_r, target_s;
  int splits, channels, rows, columns;  // channels of a group

  int64_t count_blocks() const { return ceil_div(weights, kWeightGradSumsWeights); }
};
WeightGradSums make_weight_grad_sums(const ConvProblem& problem, int64_t splits,
                                     const Buffers& buffers);

struct LaunchSite;
// Compute a weight gradient; both launches end with add_partial_sums.
void launch_weight_grad(const LaunchSite& site, const StripWeightGradFit& fit,
                        const Buffers& buffers);
void launch_weight_grad(const LaunchSite& site, const PixelWeightGradFit& fit,
                        const Buffers& buffers);
// Adds the partial sums in the workspace, `splits` for each weight.
void add_partial_sums(const LaunchSite& site, int64_t splits, const Buffers& buffers);

}  // namespace convx
