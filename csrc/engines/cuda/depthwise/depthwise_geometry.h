// Geometry of the depthwise kernels of forward passes and input gradients. The planner fills the
// *Params structs, which are complete except for the buffers, and kernels receive them in constant
// memory. Plain data and host code. weight_grad_geometry.h has the weight gradients'.
#pragma once

#include <cstdint>
#include <optional>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/gather_view.h"
#include "core/plan.h"
#include "core/problem.h"
#include "engines/cuda/depthwise/strip_shapes.h"
#include "planning/gather_axis.h"
#include "planning/staged_rows.h"

namespace convx {

constexpr int kDepthwiseThreads = 128;
constexpr int kDepthwiseVector = 4;  // elements per shared-memory load

// The outputs that a thread computes at once. Plane kernel: 4 rows of 4 columns (8 in 16 bits). The
// columns are 16 bytes of source in either case, so that the loads of neighbouring threads spread
// over all banks. Channels_last kernel: 8 rows of one column and 4 channels.
constexpr int kPlaneRows = 4;
constexpr int count_plane_columns(int64_t element_bytes) { return element_bytes == 4 ? 4 : 8; }
template <typename T>
constexpr int kPlaneColumns = count_plane_columns(sizeof(T));
constexpr int kChannelsLastRows = 8;

// Column taps that the plane kernel multiplies at once. In 16 bits, threads have 8 columns and no
// registers for 8 taps.
inline constexpr int kPlaneTaps[] = {4, 8};
constexpr bool has_plane_kernel(int64_t element_bytes, int taps) {
  return taps == 4 || element_bytes == 4;
}
// Resident blocks of the plane kernel, limited by registers; `taps` are multiplied at once.
constexpr int plane_blocks_per_sm(int64_t element_bytes, int taps) {
  return element_bytes == 2 ? 4 : taps > 4 ? 5 : 6;
}

// Values that the plane kernel's threads look up for a plane of the tile.
struct PlaneEntry {
  // Start of the plane's outputs in shared memory, in elements. If each row is its own span
  // (rows_apart), only the offset of the first row within 16 bytes.
  int start;
  float bias;
};

// If there are few tiles, the filters of a channel are divided among several blocks.
struct FilterShares {
  int64_t filters, shares;  // of a channel: filters per block; blocks

  FilterShares(int64_t multiplier, int64_t tiles, int64_t sm_count) {
    constexpr int64_t kBlocksPerSm = 4;
    const int64_t wanted = ceil_div(kBlocksPerSm * sm_count, std::max<int64_t>(1, tiles));
    filters = ceil_div(multiplier, std::min(multiplier, wanted));
    shares = ceil_div(multiplier, filters);
  }
};

// The tensors, for all depthwise kernels.
struct DepthwiseTensors {
  const void* source;
  const void* weight;
  const void* bias;           // may be null
  float lowest = kUnbounded;  // that y may be
  void* target;
  int64_t source_n, source_c, source_h, source_w;
  int64_t target_n, target_c, target_h, target_w;
  int64_t weight_k, weight_r, weight_s;
  int images, channels, multiplier;  // multiplier: filters per channel
  int source_height, source_width;
  CudaAxis row, column;
  FastDivmod by_taps, by_column_taps;

#ifdef __CUDACC__
  // Offset of a tap in w, in elements. Taps count by increasing offset, columns fastest.
  __device__ int64_t locate_weight(int64_t k, int r, int s) const {
    return k * weight_k + (row.tap0 + r * row.tap_step) * weight_r +
           (column.tap0 + s * column.tap_step) * weight_s;
  }
#endif
};

// The plane kernel: columns are contiguous (NCHW).
struct PlaneParams {
  DepthwiseTensors t;
  StagePlan stage;
  int tile_planes;           // planes (one channel of one image) of a tile
  int tile_rows, tile_cols;  // per lane: multiples of a thread's outputs
  int column_shift;          // the first tile begins this many lattice columns left of the output
  int planes;                // in the whole problem
  int cells;                 // per tile; a thread computes one cell at a time
  // Element strides between planes, between the source rows of neighbouring output rows (of one
  // lane), of neighbouring lanes and of classes, between the segments of a line, and between the
  // segments of neighbouring classes.
  int plane_pitch, row_step, row_lane_step, row_class_step, segment_pitch, class_step;
  int segment_columns;    // copied columns per segment
  int filters_per_share;  // filters of a channel that one block computes
  // Floats between column classes of a row of weights, between rows, between rows of one class, and
  // between planes.
  int class_taps_pitch, weight_pitch, weight_step, plane_weights;
  int weights_offset, table_offset, results_offset;  // bytes
  // Outputs lie in shared memory as in global memory, in contiguous spans. A span is one row if
  // rows_apart, all planes of the tile if planes_together, and otherwise the tile's rows of one
  // plane.
  int span_pitch;  // elements between spans
  bool rows_apart, planes_together;
  FastDivmod by_channels, by_shares, by_column_tiles, by_row_tiles;
  FastDivmod by_strips, by_column_lanes, by_row_groups, by_row_lanes, by_segment_units, by_classes;
};

// The channels_last tile kernel: channels are contiguous.
struct ChannelsLastParams {
  DepthwiseTensors t;
  StagePlan stage;
  int tile_rows, tile_cols;  // rows per lane, a multiple of kChannelsLastRows; columns
  int chunk;                 // channels of a tile, a multiple of kDepthwiseVector
  int cells;                 // cells of a tile, of kChannelsLastRows x kDepthwiseVector outputs
  int staged_cols;           // pixels of a line
  int filters_per_share;     // filters of a channel that one block computes
  int weights_offset;        // bytes
  bool vector_stores;        // four channels of an output pixel are stored as one vector
  FastDivmod by_shares, by_chunks, by_column_tiles, by_row_tiles;
  FastDivmod by_vectors, by_columns, by_row_groups, by_pixel_units;
};

// The strip kernel: columns are contiguous, and the kernel size is a template argument.
struct StripParams {
  DepthwiseTensors t;
  int threads;                                                   // threads that have a strip
  int segment_rows;                                              // output rows of a strip
  FastDivmod by_strips, by_segments, by_filters, by_multiplier;  // by_filters: all filters
};

// The channels_last strip kernel (pixel_strip_kernel.cuh).
struct PixelStripShape {  // a compiled kernel: taps along both axes, and their common stride
  int taps, stride;

  bool operator==(const PixelStripShape&) const = default;
};
inline constexpr PixelStripShape kPixelStripShapes[] = {{3, 1}, {3, 2}, {5, 1}, {5, 2}, {7, 1}};
// Channels and neighbouring output columns of a thread.
constexpr int pixel_strip_channels(int taps) { return taps == 3 ? 4 : 2; }
constexpr int pixel_strip_columns(int taps, int stride) {
  return taps > 3 ? 4 : stride == 1 ? 2 : 1;
}
// Resident blocks per multiprocessor, limited by registers.
constexpr int pixel_strip_blocks(int taps) { return taps == 7 ? 3 : 4; }
// Prefetch distance in steps.
constexpr int pixel_strip_steps_ahead(int taps, int stride, int64_t element_bytes) {
  if (taps == 3) return element_bytes == 4 ? 2 : 3;
  return stride == 2 && element_bytes == 4 ? 1 : 2;
}
constexpr int kPixelStripVectors = 32;  // vectors of channels in a block's chunk, at most
// Floats between the taps of a channel in shared memory. One vector more than the chunk spreads the
// stores of neighbouring taps over the banks.
constexpr int pixel_strip_weight_pitch(int taps) {
  return (kPixelStripVectors + 1) * pixel_strip_channels(taps);
}
// Whether a thread keeps its weights in registers; they are in shared memory otherwise.
constexpr bool keeps_strip_weights(int taps) { return taps == 3; }
constexpr int64_t pixel_strip_shared_bytes(int taps) {
  return keeps_strip_weights(taps) ? 0 : int64_t{4} * taps * taps * pixel_strip_weight_pitch(taps);
}
struct PixelStripParams {
  DepthwiseTensors t;
  int chunk;         // channels of a block
  int items;         // strips of a chunk: columns x segments x images
  int block_items;   // strips that a block computes, one per thread and vector
  int segment_rows;  // output rows of a strip
  // Whether w is contiguous, [channel][row][column], in the order of the taps, and aligned to the
  // channels of a thread.
  bool dense_weights;
  FastDivmod by_chunks, by_vectors, by_columns, by_segments;  // by_vectors: of a chunk
};

// The strips of input gradients with stride 2 (phase_strip_kernel.cuh).
inline constexpr int kPhaseStride = 2;
inline constexpr int kPhaseStripAhead = 2;  // prefetch distance in rows of y

struct PhaseStripKernel {  // a compiled kernel: its taps along both axes, and a thread's channels
  int kernel, channels;

  bool operator==(const PhaseStripKernel&) const = default;
};
inline constexpr PhaseStripKernel kPhaseStripKernels[] = {{3, 4}, {3, 2}, {3, 1}, {5, 2}, {5, 1}};

// Most taps of a phase along an axis.
constexpr int count_phase_taps(int kernel) { return (kernel + kPhaseStride - 1) / kPhaseStride; }
// Channels of a thread in channels_last, limited by registers: the weights stay there.
constexpr int count_phase_channels(int kernel) { return kernel == 3 ? 4 : 2; }
// Resident blocks, limited by registers.
inline constexpr int kPhaseStripBlocks = 4;

struct PhaseStripParams {
  const void* source;  // y
  const void* weight;
  const void* bias;           // null
  float lowest = kUnbounded;  // that y may be
  void* target;               // x
  int64_t source_n, source_c, source_h, source_w;
  int64_t target_n, target_c, target_h, target_w;
  int64_t weight_k, weight_r, weight_s;
  int source_height, source_width, target_height, target_width;
  int pad_top, pad_left;
  int first_row, end_row, first_column;  // lattice points
  int threads, segment_rows;
  bool channel_is_fastest;  // neighbouring threads have neighbouring channels, otherwise columns
  FastDivmod by_vectors, by_columns, by_segments;
};

// The axis that is contiguous in both tensors: columns (NCHW), channels (channels_last), or
// neither.
enum class DepthwiseLayout : uint8_t { kPlanes, kPixels, kOther };

class Text;

// The strip kernel of a problem, if one matches.
struct StripFit {
  int shape = -1;   // index in kStripShapes (strip_shapes.h); -1: no kernel matches
  int columns = 0;  // one of kStripColumns
  StripParams params{};
  int64_t blocks = 0;
};

// The channels_last strip kernel of a problem.
struct PixelStripFit {
  int shape = -1;  // index in kPixelStripShapes
  PixelStripParams params{};
  int64_t blocks = 0;  // 0: no kernel matches
};

// The tile kernel's parameters of the layout are always filled. If strips are predicted to be
// faster, theirs are filled too and take precedence.
struct DepthwiseFit {
  DepthwiseLayout layout = DepthwiseLayout::kOther;
  PlaneParams plane{};
  ChannelsLastParams pixel{};
  StripFit strip;
  PixelStripFit pixel_strip;
  int64_t blocks = 0;  // 0: no tile fits in shared memory
  int64_t shared_bytes = 0;
  int plane_taps = 0;  // NCHW: one of kPlaneTaps
  double microseconds = 0;

  void describe(Text& out) const;
};

struct PhaseStripFit {
  PhaseStripParams params{};
  int kernel = 0;      // 3 or 5
  int channels = 0;    // of a thread: 1, 2 or 4
  int64_t blocks = 0;  // 0: the kernel does not serve the problem
  double microseconds = 0;

  void describe(Text& out) const;
};

// True for the problems that only phase strips can serve.
inline bool is_strided_input_grad(const ConvProblem& p) {
  return p.pass == Pass::kInputGrad && p.stride != Hw{1, 1};
}

DepthwiseLayout find_depthwise_layout(const ConvProblem& problem);

// Fits a forward pass, or an input gradient that has the same form: stride 1 and one filter per
// channel.
DepthwiseFit fit_depthwise(const ConvProblem& problem, const DeviceCaps& caps);
PhaseStripFit fit_phase_strips(const ConvProblem& problem, const DeviceCaps& caps);

// Returns whether strips of a shape and width serve a problem.
bool can_cut_strips(const ConvProblem& problem, const DepthwiseTensors& t, const StripShape& shape,
                    int columns, int64_t piece);

// Steps of fit_depthwise; `fit` holds the tensors. Strips keep the previous fit if they would be
// slower.
void fit_planes(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);
void fit_channels_last(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);
void fit_strips(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);
void fit_pixel_strips(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);

// Complete the fits and kernel parameters with the buffers of one call. Their alignment limits the
// width of copies, and a thread's columns or channels.
PlaneParams make_plane_params(const ConvProblem& problem, const DepthwiseFit& fit,
                              const Buffers& buffers);
ChannelsLastParams make_channels_last_params(const ConvProblem& problem, const DepthwiseFit& fit,
                                             const Buffers& buffers);
StripFit make_strip_launch(const ConvProblem& problem, const DepthwiseFit& fit,
                           const Buffers& buffers);
// Returns nothing if the fit has no channels_last strips or the buffers are not aligned for them.
std::optional<PixelStripParams> make_pixel_strip_params(const ConvProblem& problem,
                                                        const DepthwiseFit& fit,
                                                        const Buffers& buffers);
PhaseStripFit make_phase_strips(const ConvProblem& problem, const PhaseStripFit& fit,
                                const Buffers& buffers);

// The tensors of a forward pass or an input gradient in NCHW or channels_last.
DepthwiseTensors make_plane_tensors(const ConvProblem& problem);
DepthwiseTensors make_pixel_tensors(const ConvProblem& problem);

struct LaunchSite;
void launch_strips(const LaunchSite& site, const StripFit& fit);
void launch_strips(const LaunchSite& site, const PixelStripFit& fit);
void launch_strips(const LaunchSite& site, const PhaseStripFit& fit);

// Sets the extents and strides that all kernels of the family need, cuda_bands' too.
template <typename Params>
void set_depthwise_tensors(const ConvProblem& problem, const GatherView& view, Params& p) {
  const Strides &from = view.source_strides, &to = view.target_strides;
  p.source_n = from.n, p.source_c = from.c, p.source_h = from.h;
  p.target_n = to.n, p.target_c = to.c, p.target_h = to.h;
  if constexpr (requires { p.source_w; }) p.source_w = from.w, p.target_w = to.w;
  p.weight_k = problem.w_strides.n, p.weight_r = problem.w_strides.h;
  p.weight_s = problem.w_strides.w;
  p.source_height = narrow(view.source_h), p.source_width = narrow(view.source_w);
}

}  // namespace convx
