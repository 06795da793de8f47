#include <algorithm>
#include <iterator>

#include "core/arithmetic.h"
#include "engines/cuda/depthwise/depthwise_costs.h"
#include "engines/cuda/depthwise/depthwise_fit.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

// Returns the index of the kernel that serves the problem, or -1. A kernel loads and stores a
// vector of channels at once.
int find_shape(const ConvProblem& problem, const DepthwiseTensors& t) {
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
void fit_segments(const Candidate& c, DepthwiseFit& fit) {
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

}  // namespace

void fit_pixel_strips(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit) {
  constexpr int64_t kSectorBytes = 32;
  constexpr int64_t kLeastSectors = 2;  // of a pixel's channels in one block
  const DepthwiseTensors t = fit.pixel.t;
  const int shape = find_shape(problem, t);
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
    fit_segments({problem, caps, t, shape, block}, fit);
  }
}

}  // namespace convx
