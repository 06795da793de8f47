// The strips of strip_kernel.cuh (NCHW), pixel_strip_kernel.cuh (channels_last) and
// phase_strip_kernel.cuh (input gradients with stride 2).
#include <algorithm>
#include <iterator>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "engines/cuda/depthwise/depthwise_costs.h"
#include "engines/cuda/depthwise/depthwise_geometry.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

bool matches_strip_shape(const StripShape& shape, const DepthwiseTensors& t) {
  const CudaAxis& row = t.row;
  const CudaAxis& column = t.column;
  return row.taps == shape.row_taps && column.taps == shape.column_taps && row.offset_step == 1 &&
         column.offset_step == 1 && row.source_step == shape.stride &&
         column.source_step == shape.stride && column.offset0 == -shape.left;
}

constexpr int64_t kWarp = 32;

// Divides the rows among threads and keeps the best number of segments.
void fit_strip_segments(const ConvProblem& problem, const DeviceCaps& caps, int index, int columns,
                        DepthwiseFit& fit) {
  const DepthwiseTensors& t = fit.plane.t;
  const StripShape& shape = kStripShapes[index];
  const int64_t element = size_of(problem.dtype);
  const StripReads reads(shape, element, columns);
  const int64_t filters = int64_t{t.channels} * t.multiplier;
  int64_t strips = ceil_div(t.column.count, columns);
  if (shifts_rows(shape, columns)) strips = round_up(strips, kWarp);
  const int64_t height = t.row.count;
  const int64_t lead = ceil_div(shape.row_taps, shape.stride) - 1;  // steps before the first output
  const int64_t padding = std::clamp<int64_t>(ceil_div(-t.row.offset0, shape.stride), 0, lead);
  for (int64_t segments = 1; segments <= height; segments = next_size(segments)) {
    const int64_t rows = ceil_div(height, segments);
    const int64_t used = ceil_div(height, rows);
    const int64_t threads = problem.N * filters * used * strips;
    const int64_t blocks = ceil_div(threads, kDepthwiseThreads);
    // The launch falls back to single columns if addresses are not aligned, so these must fit too.
    const int64_t most_threads =
        problem.N * filters * used * std::max<int64_t>(strips, t.column.count);
    if (round_up(most_threads, kDepthwiseThreads) >= int64_t{1} << 31) return;
    const double steps =
        static_cast<double>(height + lead * used - 2 * padding) / static_cast<double>(used);
    StripWork work{};
    work.blocks = static_cast<double>(blocks);
    work.resident = strip_blocks_per_sm(shape, element, columns);
    work.warp_issue =
        kStripSetupIssue + steps * (count_strip_issue(shape, columns, element) +
                                    (shifts_rows(shape, columns) ? kStripShiftIssue : 0));
    work.waits = steps / strip_steps_ahead(shape, columns);
    work.moved_bytes = static_cast<double>(threads * element) *
                       (steps * shape.stride * reads.span + static_cast<double>(rows * columns));
    work.least_bytes = count_bytes(problem);
    work.load_bytes = static_cast<double>(reads.vector * element);
    const double us = predict_strips_us(work, caps);
    if (us >= fit.microseconds) continue;
    fit.microseconds = us;
    fit.strip.shape = index, fit.strip.columns = columns, fit.strip.blocks = blocks;
    StripParams& p = fit.strip.params;
    p.t = t;
    p.threads = static_cast<int>(threads), p.segment_rows = static_cast<int>(rows);
    p.by_strips = FastDivmod(strips), p.by_segments = FastDivmod(used);
    p.by_filters = FastDivmod(filters), p.by_multiplier = FastDivmod(t.multiplier);
  }
}

// Returns the index of the kernel that serves the problem, or -1. A kernel loads and stores a
// vector of channels at once.
int find_pixel_shape(const ConvProblem& problem, const DepthwiseTensors& t) {
  for (int index = 0; index < static_cast<int>(std::size(kPixelStripShapes)); ++index) {
    const PixelStripShape& shape = kPixelStripShapes[index];
    const auto matches = [&](const CudaAxis& axis) {
      return axis.taps == shape.taps && axis.offset_step == 1 && axis.source_step == shape.stride;
    };
    const int channels = pixel_strip_channels(shape.taps);
    const auto divides = [&](auto... extents) { return ((extents % channels == 0) && ...); };
    if (t.multiplier == 1 && matches(t.row) && matches(t.column) &&
        divides(t.channels, t.source_w, t.source_h, t.target_w, t.target_h,
                problem.N > 1 ? t.source_n : 0, problem.N > 1 ? t.target_n : 0)) {
      return index;
    }
  }
  return -1;
}

// Returns whether w is contiguous, [channel][row][column], with taps in order of increasing offset.
bool has_dense_weights(const DepthwiseTensors& t, int taps) {
  const auto in_order = [](const CudaAxis& axis) { return axis.tap0 == 0 && axis.tap_step == 1; };
  return in_order(t.row) && in_order(t.column) && t.weight_k == taps * taps && t.weight_r == taps &&
         t.weight_s == 1;
}

// A distribution of the channels among blocks and of a block's threads.
struct StripBlock {
  int64_t chunks, vectors;  // vectors of channels per chunk
  int64_t items;            // strips that a block computes at once

  // `whole` vectors fill a sector of 32 bytes.
  StripBlock(int64_t all_vectors, int64_t wanted_chunks, int64_t whole) {
    vectors = round_up(ceil_div(all_vectors, wanted_chunks), whole);
    chunks = ceil_div(all_vectors, vectors);
    items = kDepthwiseThreads / vectors;
  }
};

struct Candidate {
  const ConvProblem& problem;
  const DeviceCaps& caps;
  const DepthwiseTensors& t;
  int shape;
  StripBlock block;
};

// Cuts rows into segments and keeps the fastest choice.
void fit_pixel_segments(const Candidate& c, DepthwiseFit& fit) {
  constexpr double kLatencyShare = 0.25;  // estimated
  // Time per weight that a thread stages. Fitted to 3x3 and 7x7 layers with one image (H200,
  // 2026-11-18), which took 0.10 to 0.20 us when 64-bit arithmetic located all weights.
  constexpr double kWeightUs = 0.1;
  constexpr double kMostBlocks = double{int64_t{1} << 31};
  const auto [taps, stride] = kPixelStripShapes[c.shape];
  const DepthwiseTensors& t = c.t;
  const StripBlock& block = c.block;
  const int channels = pixel_strip_channels(taps);
  const int at_once = pixel_strip_columns(taps, stride);
  const int ahead = pixel_strip_steps_ahead(taps, stride, size_of(c.problem.dtype));
  const double element = static_cast<double>(size_of(c.problem.dtype));
  const int64_t columns = ceil_div(t.column.count, at_once);
  const int64_t height = t.row.count;
  const int pixels = (at_once - 1) * stride + taps;
  const int64_t lead = ceil_div(taps, stride) - 1;  // steps before the first output
  const int64_t source_steps = ceil_div(t.source_height, stride) + 1;
  // Warp instructions; see pixel_strip_kernel.cuh.
  const double convert = element == 2 ? channels : 0;
  const double products = static_cast<double>(taps * at_once * channels);  // of a row of taps
  const double weight_loads = keeps_strip_weights(taps) ? 0 : taps;
  const double step_issue = stride * (kStripRowIssue + pixels * (kStripLoadIssue + convert)) +
                            at_once * (kStripStepIssue + channels);
  const double run = static_cast<double>(block.vectors * channels) * element;
  // Weights that a thread loads, its own or its part of the chunk's.
  const double weights =
      static_cast<double>(channels * taps * taps) *
      (keeps_strip_weights(taps) ? 1 : static_cast<double>(block.vectors) / kDepthwiseThreads);
  const double weight_issue = keeps_strip_weights(taps) ? kStripKeptWeightIssue : kStripWeightIssue;
  // The load-store unit takes a cycle for each line of 128 bytes that a warp loads, and one for
  // each channel of a weight.
  const double lines =
      std::max(1.0, run / 128) * std::ceil(32.0 / static_cast<double>(block.vectors));
  const auto count_next = [&](int64_t segments) {
    return segments == height ? 0 : std::min(next_size(segments), height);
  };
  for (int64_t segments = 1; segments > 0; segments = count_next(segments)) {
    const int64_t rows = ceil_div(height, segments);
    const int64_t used = ceil_div(height, rows);
    const int64_t items = c.problem.N * used * columns;
    const int64_t blocks = block.chunks * ceil_div(items, block.items);
    if (static_cast<double>(items) * static_cast<double>(block.chunks) >= kMostBlocks) return;
    const double steps = static_cast<double>(std::min(rows + lead, source_steps));
    // Larger kernels skip rows of taps whose output row is another thread's.
    const double row_taps =
        keeps_strip_weights(taps) ? steps * taps : static_cast<double>(rows * taps);
    StripWork work{};
    work.blocks = static_cast<double>(blocks);
    work.resident = pixel_strip_blocks(taps);
    work.warp_issue = kStripSetupIssue + weights * weight_issue + steps * step_issue +
                      row_taps * (products + weight_loads);
    work.wavefronts = steps * stride * pixels * lines + row_taps * weight_loads * channels;
    work.waits = steps / ahead;
    work.moved_bytes = static_cast<double>(items) * t.channels * element *
                       (steps * stride * stride + static_cast<double>(rows)) * at_once;
    work.least_bytes = count_bytes(c.problem);
    work.load_bytes = channels * element;
    // A block multiplies nothing before its weights are staged. If multiprocessors have two blocks
    // or more, others are multiplying meanwhile.
    const double sms = std::max(c.caps.sm_count, 1);
    const double alone = std::clamp(2 - work.blocks / sms, 0.0, 1.0);
    const double staging = keeps_strip_weights(taps) ? 0 : alone * weights * kWeightUs;
    // Few warps of a large kernel do not fill the memory's queues, even if their loads are ahead.
    const double latency =
        keeps_strip_weights(taps) ? 0 : kLatencyShare * work.waits * kStripLatencyUs;
    const double us = predict_strips_us(work, c.caps) + latency + staging;
    if (us >= fit.microseconds) continue;
    fit.microseconds = us;
    fit.pixel_strip.shape = c.shape;
    fit.pixel_strip.blocks = blocks;
    PixelStripParams& p = fit.pixel_strip.params;
    p.t = t;
    p.chunk = static_cast<int>(block.vectors * channels);
    p.items = static_cast<int>(items), p.block_items = static_cast<int>(block.items);
    p.segment_rows = static_cast<int>(rows);
    p.dense_weights = has_dense_weights(t, taps);
    p.by_chunks = FastDivmod(block.chunks), p.by_vectors = FastDivmod(block.vectors);
    p.by_columns = FastDivmod(columns), p.by_segments = FastDivmod(used);
  }
}

// Lattice points i with  kPhaseStride * i + a - pad  inside the target for some a.
struct Lattice {
  int64_t first, end;

  Lattice(int64_t extent, int64_t pad)
      : first(pad / kPhaseStride), end((extent - 1 + pad) / kPhaseStride + 1) {}
  int64_t count() const { return end - first; }
};

bool has_phase_strips(const ConvProblem& p) {
  return (p.R == 3 || p.R == 5) && p.S == p.R && p.stride == Hw{kPhaseStride, kPhaseStride} &&
         p.dilation == Hw{1, 1} && p.K == p.C;
}

// Sets the number of a thread's channels, and predicts the time of the best segments.
void fit_phase_segments(const ConvProblem& p, const DeviceCaps& caps, int channels,
                        PhaseStripFit& fit) {
  const Lattice rows(p.H, p.pad.top), columns(p.W, p.pad.left);
  const int64_t vectors = p.C / channels;
  const int64_t taps = count_phase_taps(fit.kernel), element = size_of(p.dtype);
  // Warp instructions per step; see phase_strip_kernel.cuh.
  constexpr int64_t kTargets = kPhaseStride * kPhaseStride;
  const double convert = element == 2 ? kDepthwiseConvertIssue * channels / kDepthwiseVector : 0;
  const auto products = static_cast<double>(fit.kernel * fit.kernel * channels);
  const double step_issue =
      products + kStripRowIssue + static_cast<double>(taps) * (kStripLoadIssue + convert) +
      static_cast<double>(taps * (taps - 1) * channels) + kTargets * (kStripStepIssue + channels);
  for (int64_t segments = 1; segments <= rows.count(); segments = next_size(segments)) {
    const int64_t height = ceil_div(rows.count(), segments);
    const int64_t used = ceil_div(rows.count(), height);
    const int64_t threads = p.N * used * columns.count() * vectors;
    if (round_up(threads, kDepthwiseThreads) >= int64_t{1} << 31) return;
    const auto steps = static_cast<double>(height + taps - 1);
    StripWork work{};
    work.blocks = static_cast<double>(ceil_div(threads, kDepthwiseThreads));
    work.resident = kPhaseStripBlocks;
    work.warp_issue = kPhaseStripSetupIssue + products + steps * step_issue;
    work.waits = steps / kPhaseStripAhead;
    work.moved_bytes = static_cast<double>(threads * element * channels) *
                       (steps + static_cast<double>(height * kTargets));
    work.least_bytes = count_bytes(p);
    work.load_bytes = static_cast<double>(channels * element);
    const double us = predict_strips_us(work, caps);
    if (fit.blocks > 0 && us >= fit.microseconds) continue;
    fit.microseconds = us;
    fit.channels = channels;
    fit.blocks = ceil_div(threads, kDepthwiseThreads);
    PhaseStripParams& to = fit.params;
    to.threads = static_cast<int>(threads), to.segment_rows = static_cast<int>(height);
    to.by_vectors = FastDivmod(vectors), to.by_columns = FastDivmod(columns.count());
    to.by_segments = FastDivmod(used);
  }
}

}  // namespace

// Source rows are read as whole vectors. Target rows, which have no gaps between them (see
// find_depthwise_layout), are accessed in pieces of `piece` elements. Strides of axes with one
// element do not matter.
bool can_cut_strips(const ConvProblem& problem, const DepthwiseTensors& t, const StripShape& shape,
                    int columns, int64_t piece) {
  if (!matches_strip_shape(shape, t)) return false;
  const int64_t vector = StripReads(shape, size_of(problem.dtype), columns).vector;
  const auto divides = [](int64_t size, auto... extents) { return ((extents % size == 0) && ...); };
  return divides(vector, t.source_width, problem.N > 1 ? t.source_n : 0,
                 problem.C > 1 ? t.source_c : 0, t.source_height > 1 ? t.source_h : 0) &&
         divides(piece, t.column.count, problem.N > 1 ? t.target_n : 0,
                 problem.K > 1 ? t.target_c : 0);
}

void fit_strips(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit) {
  if (fit.blocks == 0) return;
  const int64_t element = size_of(problem.dtype);
  for (const auto& [index, columns] : kStripKernels) {
    const StripShape& shape = kStripShapes[index];
    if (!has_strip_kernel(shape, element, columns)) continue;
    const int64_t stored = shifts_rows(shape, columns) ? 4 / element : columns;
    if (can_cut_strips(problem, fit.plane.t, shape, columns, stored)) {
      fit_strip_segments(problem, caps, index, columns, fit);
    }
  }
}

void fit_pixel_strips(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit) {
  constexpr int64_t kSectorBytes = 32;
  constexpr int64_t kLeastSectors = 2;  // of a pixel's channels in one block
  const DepthwiseTensors t = fit.pixel.t;
  const int shape = find_pixel_shape(problem, t);
  if (fit.blocks == 0 || shape < 0) return;
  const int taps = kPixelStripShapes[shape].taps;
  const int channels = pixel_strip_channels(taps);
  const int64_t vectors = t.channels / channels;
  const int64_t whole = kSectorBytes / (channels * size_of(problem.dtype));
  const int64_t fewest = ceil_div(vectors, kPixelStripVectors);
  for (int64_t factor = 1;; factor = next_size(factor)) {
    const StripBlock block(vectors, fewest * factor, whole);
    if (factor > 1 && block.vectors < kLeastSectors * whole) break;
    // Narrow chunks have fewer weights to stage, and read memory in shorter runs.
    if (factor > 1 && keeps_strip_weights(taps)) break;
    fit_pixel_segments({problem, caps, t, shape, block}, fit);
  }
}

PhaseStripFit fit_phase_strips(const ConvProblem& p, const DeviceCaps& caps) {
  PhaseStripFit fit;
  const DepthwiseLayout layout = find_depthwise_layout(p);
  if (!is_strided_input_grad(p) || !has_phase_strips(p) || layout == DepthwiseLayout::kOther)
    return fit;
  PhaseStripParams& to = fit.params;
  const Strides &x = p.x_strides, &y = p.y_strides;
  set_depthwise_tensors(p, make_gather_view(p), to);
  to.target_height = narrow(p.H), to.target_width = narrow(p.W);
  to.pad_top = narrow(p.pad.top), to.pad_left = narrow(p.pad.left);
  const Lattice rows(p.H, p.pad.top), columns(p.W, p.pad.left);
  to.first_row = narrow(rows.first), to.end_row = narrow(rows.end);
  to.first_column = narrow(columns.first);
  to.channel_is_fastest = layout == DepthwiseLayout::kPixels;
  fit.kernel = narrow(p.R);
  const auto stride = [](int64_t extent, int64_t own) { return extent > 1 ? own : 0; };
  const int unit = fit_unit(size_of(p.dtype), p.C, stride(p.N, x.n), stride(p.N, y.n),
                            stride(p.H, x.h), stride(p.P, y.h), stride(p.W, x.w), stride(p.Q, y.w));
  const int most = count_phase_channels(fit.kernel);
  fit_phase_segments(p, caps, to.channel_is_fastest ? std::min(unit, most) : 1, fit);
  return fit;
}

PhaseStripFit make_phase_strips(const ConvProblem& problem, const PhaseStripFit& fit,
                                const Buffers& buffers) {
  PhaseStripFit made = fit;
  set_gather_buffers(made.params, problem, buffers);
  const bool aligned = is_aligned(buffers.x, problem.dtype, fit.channels) &&
                       is_aligned(buffers.y, problem.dtype, fit.channels);
  if (aligned) return made;
  // One channel per thread, with the same segments.
  PhaseStripParams& p = made.params;
  p.threads *= fit.channels;
  p.by_vectors = FastDivmod(problem.C);
  made.blocks = ceil_div(p.threads, kDepthwiseThreads);
  made.channels = 1;
  return made;
}

StripFit make_strip_launch(const ConvProblem& problem, const DepthwiseFit& fit,
                           const Buffers& buffers) {
  StripFit made = fit.strip;
  StripParams& p = made.params;
  set_gather_buffers(p.t, problem, buffers);
  const StripShape& shape = kStripShapes[made.shape];
  const int64_t element = size_of(problem.dtype);
  const StripReads reads(shape, element, made.columns);
  const int stored =
      shifts_rows(shape, made.columns) ? static_cast<int>(4 / element) : made.columns;
  if (is_aligned(p.t.source, problem.dtype, reads.vector) &&
      is_aligned(p.t.target, problem.dtype, stored)) {
    return made;
  }
  // Single columns, with the same segments.
  const int64_t threads = p.threads / static_cast<int64_t>(p.by_strips.divisor) * p.t.column.count;
  made.columns = 1, made.blocks = ceil_div(threads, kDepthwiseThreads);
  p.threads = narrow(threads), p.by_strips = FastDivmod(p.t.column.count);
  return made;
}

std::optional<PixelStripParams> make_pixel_strip_params(const ConvProblem& problem,
                                                        const DepthwiseFit& fit,
                                                        const Buffers& buffers) {
  if (fit.pixel_strip.blocks == 0) return {};
  PixelStripParams params = fit.pixel_strip.params;
  set_gather_buffers(params.t, problem, buffers);
  const int channels = pixel_strip_channels(kPixelStripShapes[fit.pixel_strip.shape].taps);
  const bool aligned = is_aligned(params.t.source, problem.dtype, channels) &&
                       is_aligned(params.t.target, problem.dtype, channels);
  if (!aligned) return {};
  params.dense_weights =
      params.dense_weights && is_aligned(params.t.weight, problem.dtype, channels);
  return params;
}

}  // namespace convx
