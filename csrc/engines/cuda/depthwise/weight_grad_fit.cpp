// The weight gradients of strip_weight_grad_kernel.cu and row_weight_grad_kernel.cuh, and the
// choice among all three kernels.
#include <algorithm>
#include <iterator>

#include "core/gather_view.h"
#include "engines/cuda/depthwise/depthwise_costs.h"
#include "engines/cuda/depthwise/weight_grad_geometry.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

constexpr int64_t kWarps = kDepthwiseThreads / 32;

// Cuts strips into segments, divides these among threads and blocks, and keeps the fastest choice.
void fit_strip_splits(const ConvProblem& problem, const DeviceCaps& caps, const DepthwiseTensors& t,
                      int index, int columns, StripWeightGradFit& fit) {
  constexpr int64_t kMostRounds = 64;  // segments that a thread computes one after the other
  const StripShape& shape = kStripShapes[index];
  const int64_t element = size_of(problem.dtype);
  const StripReads reads(shape, element, columns);
  const int64_t taps = problem.taps();
  const int64_t pairs = problem.K * problem.channels_per_group();
  const int64_t strips = t.column.count / columns;
  const int64_t last_steps = ceil_div(shape.row_taps, shape.stride) - 1;  // after the last row
  for (int64_t wanted = 1; wanted <= t.row.count; wanted = next_size(wanted)) {
    const int64_t rows = ceil_div(t.row.count, wanted), segments = ceil_div(t.row.count, rows);
    const int64_t items = problem.N * segments * strips;
    if (items >= int64_t{1} << 30) return;
    for (int64_t rounds = 1; rounds <= kMostRounds; rounds *= 2) {
      const int64_t per_split = rounds * kDepthwiseThreads, splits = ceil_div(items, per_split);
      const int64_t blocks = splits * pairs;
      const int64_t workspace = splits * pairs * taps * 4;
      if (blocks >= int64_t{1} << 31 || workspace > caps.workspace_limit) continue;
      const double steps = static_cast<double>(rows + last_steps);
      const double passes = static_cast<double>(rounds);
      StripWork work{};
      work.blocks = static_cast<double>(blocks);
      work.resident = weight_grad_blocks_per_sm(shape, element, columns);
      work.warp_issue =
          kStripSetupIssue + static_cast<double>(taps) * kStripSumIssue +
          passes * (kStripSetupIssue + steps * (count_strip_issue(shape, columns, element) +
                                                kStripLoadIssue + 2 * columns));
      work.waits = passes * steps / strip_steps_ahead(shape, columns);
      work.moved_bytes = static_cast<double>(pairs * items * element) *
                         (steps * shape.stride * reads.span + static_cast<double>(rows * columns));
      work.least_bytes = count_bytes(problem) + 2.0 * static_cast<double>(workspace);
      work.load_bytes = static_cast<double>(std::min(reads.vector, columns) * element);
      const double us = predict_strips_us(work, caps) + kStripSecondPassUs;
      if (fit.blocks > 0 && us >= fit.microseconds) continue;
      fit.microseconds = us;
      fit.blocks = blocks, fit.splits = splits, fit.workspace_bytes = workspace;
      fit.shape = index, fit.columns = columns;
      fit.shared_bytes = kWarps * taps * 4;
      StripWeightGradParams& p = fit.params;
      p.t = t;
      p.partial_stride = pairs * taps;
      p.items = narrow(items), p.items_per_split = narrow(per_split);
      p.segment_rows = narrow(rows);
      p.by_strips = FastDivmod(strips), p.by_segments = FastDivmod(segments);
      p.group_channels = narrow(problem.channels_per_group());
      p.by_pairs = FastDivmod(pairs), p.by_group_channels = FastDivmod(p.group_channels);
      p.by_multiplier = FastDivmod(t.multiplier);
    }
  }
}

// Returns the index of the kernel that serves the problem, or -1. A thread loads two channels of a
// pixel at once.
int find_row_core(const ConvProblem& problem, const DepthwiseTensors& t) {
  const auto divides = [](auto... extents) { return ((extents % kRowGradChannels == 0) && ...); };
  if (t.multiplier != 1 ||
      !divides(t.channels, t.source_w, t.source_h, t.target_w, t.target_h,
               problem.N > 1 ? t.source_n : 0, problem.N > 1 ? t.target_n : 0)) {
    return -1;
  }
  for (int index = 0; index < narrow(std::size(kRowGradCores)); ++index) {
    const RowGradCore& core = kRowGradCores[index];
    const auto matches = [&](const CudaAxis& axis) {
      return axis.taps == core.taps && axis.offset_step == 1 && axis.source_step == core.stride;
    };
    if (matches(t.row) && matches(t.column)) return index;
  }
  return -1;
}

// The share of the pairs of an output row and a row of taps whose source row is inside the image.
double find_inside_share(const CudaAxis& row, int source_height) {
  int64_t inside = 0;
  for (int64_t r = 0; r < row.taps; ++r) {
    // Outputs p with 0 <= p * source_step + first < source_height.
    const int64_t first = row.offset0 + r;
    const int64_t begin = first >= 0 ? 0 : ceil_div(-first, row.source_step);
    const int64_t end =
        first >= source_height ? 0 : ceil_div(source_height - first, int64_t{row.source_step});
    inside += std::max<int64_t>(0, std::min<int64_t>(end, row.count) - begin);
  }
  return static_cast<double>(inside) / static_cast<double>(int64_t{row.count} * row.taps);
}

struct RowCandidate {
  const ConvProblem& problem;
  const DeviceCaps& caps;
  const DepthwiseTensors& t;
  int core;
  int64_t vectors, slices;
};

// Distributes the items among blocks and keeps the fastest choice.
void fit_row_splits(const RowCandidate& c, RowWeightGradFit& fit) {
  constexpr double kIssuePerCycle = 2.8, kWarpIssue = 0.3;
  constexpr double kItemIssue = 40;  // locating an item
  constexpr double kItemUs = 0.35;   // loads of an item from L2, partly hidden; estimated
  const auto [taps, stride] = kRowGradCores[c.core];
  const ConvProblem& problem = c.problem;
  const DepthwiseTensors& t = c.t;
  const double element = static_cast<double>(size_of(problem.dtype));
  const int64_t columns = row_grad_columns(stride);
  const int64_t pixels = (columns - 1) * stride + taps;
  const int64_t chunks = ceil_div(t.channels, c.vectors * kRowGradChannels);
  const int64_t tiles = ceil_div(t.column.count, columns);
  const int64_t items = problem.N * tiles * t.row.count;
  if (items >= int64_t{1} << 30) return;
  const int64_t slice_threads = c.vectors * taps, threads = slice_threads * c.slices;
  const int64_t shared_bytes = int64_t{4} * taps * kRowGradChannels * threads;
  // Registers per thread of the compiled kernels, rounded up.
  const int64_t registers = element == 2 ? 88 : 128;
  const int64_t resident =
      std::clamp<int64_t>(std::min(65536 / (registers * round_up(threads, 32)),
                                   c.caps.count_blocks_by_shared(shared_bytes)),
                          1, 16);
  const double sms = std::max(c.caps.sm_count, 1);
  const double warps = static_cast<double>(ceil_div(threads, 32));
  const double share = find_inside_share(t.row, t.source_height);
  const double loads = static_cast<double>(columns + pixels);
  const double convert = element == 2 ? kRowGradChannels : 0;
  const double products = static_cast<double>(columns * taps * kRowGradChannels);
  const double item_issue =
      kItemIssue + loads * kStripLoadIssue + share * (loads * convert + products);
  const double store_issue =
      taps * kRowGradChannels *
      (3 + (20 + 3 * static_cast<double>(c.slices)) / static_cast<double>(c.slices));
  const double run = static_cast<double>(c.vectors * kRowGradChannels) * element;
  // The load-store unit takes a cycle for each line of 128 bytes that a warp loads.
  const double lines = std::max(1.0, run / 128) * std::ceil(32.0 / static_cast<double>(c.vectors));
  // Source rows that a block's slices read for each of their output rows; L1 serves the others.
  const double fresh_rows =
      stride + static_cast<double>(taps - stride) / static_cast<double>(c.slices);
  int64_t tried = 0;
  for (int64_t waves = 0; waves <= 4; ++waves) {  // 0: one split
    const int64_t wanted =
        waves == 0 ? 1 : std::max<int64_t>(1, waves * resident * c.caps.sm_count / chunks);
    const int64_t split_items =
        std::min(round_up(ceil_div(items, wanted), c.slices), round_up(items, c.slices));
    const int64_t splits = ceil_div(items, split_items);
    if (splits == tried) continue;
    tried = splits;
    const int64_t blocks = splits * chunks;
    const int64_t workspace = splits == 1 ? 0 : splits * problem.K * problem.taps() * 4;
    if (blocks >= int64_t{1} << 31 || workspace > c.caps.workspace_limit) continue;
    const double per_sm = std::ceil(static_cast<double>(blocks) / sms);
    const double together = std::min(per_sm, static_cast<double>(resident));
    const double rate = std::min(kIssuePerCycle, kWarpIssue * together * warps);
    const double rounds = static_cast<double>(split_items / c.slices);
    const double block_issue = kStripSetupIssue + rounds * item_issue + store_issue;
    const double cycles =
        per_sm * warps * std::max(block_issue / rate, rounds * share * loads * lines);
    const double compute = cycles / kDepthwiseCyclesPerUs;
    const double least = count_bytes(problem) + 2.0 * static_cast<double>(workspace);
    const double moved = static_cast<double>(items) * t.channels * element *
                         (static_cast<double>(columns) + static_cast<double>(pixels) * fresh_rows);
    const double spread = std::min(1.0, static_cast<double>(blocks) / sms);
    const double memory =
        (least / kStripBytesPerUs + std::max(0.0, moved - least) / kDepthwiseExcessBytesPerUs) *
        kDepthwiseReferenceSms / sms / spread;
    const double latency =
        std::ceil(per_sm / static_cast<double>(resident)) * (kStripLatencyUs + rounds * kItemUs);
    const double us = kDepthwiseLaunchUs + (splits == 1 ? 0 : kPixelGradSecondPassUs) +
                      std::max({compute, memory, latency}) + 0.15 * std::min(compute, memory);
    if (fit.blocks > 0 && us >= fit.microseconds) continue;
    fit.microseconds = us;
    fit.blocks = blocks, fit.splits = splits, fit.workspace_bytes = workspace;
    fit.shared_bytes = shared_bytes;
    fit.core = c.core, fit.threads = narrow(threads);
    RowWeightGradParams& p = fit.params;
    p.t = t;
    p.partial_stride = problem.K * problem.taps();
    p.splits = narrow(splits), p.items = narrow(items), p.split_items = narrow(split_items);
    p.chunk = narrow(c.vectors * kRowGradChannels);
    p.slices = narrow(c.slices), p.slice_threads = narrow(slice_threads);
    p.by_chunks = FastDivmod(chunks), p.by_vectors = FastDivmod(c.vectors);
    p.by_slice_threads = FastDivmod(slice_threads);
    p.by_rows = FastDivmod(t.row.count), p.by_tiles = FastDivmod(tiles);
  }
}

}  // namespace

StripWeightGradFit fit_strip_weight_grad(const ConvProblem& forward, const DeviceCaps& caps) {
  StripWeightGradFit fit;
  const DepthwiseTensors t = make_plane_tensors(forward);
  for (const auto& [index, columns] : kStripKernels) {
    const StripShape& shape = kStripShapes[index];
    if (has_weight_grad_kernel(shape, columns) &&
        can_cut_strips(forward, t, shape, columns, columns)) {
      fit_strip_splits(forward, caps, t, index, columns, fit);
    }
  }
  return fit;
}

StripWeightGradFit make_strip_weight_grad(const ConvProblem& problem, const StripWeightGradFit& fit,
                                          const Buffers& buffers) {
  StripWeightGradFit made = fit;
  made.params.t.source = buffers.x, made.params.t.target = buffers.y;
  made.params.partials = static_cast<float*>(buffers.workspace);
  const StripReads reads(kStripShapes[fit.shape], size_of(problem.dtype), fit.columns);
  made.aligned = is_aligned(buffers.x, problem.dtype, reads.vector) &&
                 is_aligned(buffers.y, problem.dtype, fit.columns);
  return made;
}

RowWeightGradFit fit_row_weight_grad(const ConvProblem& forward, const DeviceCaps& caps) {
  constexpr int64_t kSectorBytes = 32, kMostVectors = 32;
  RowWeightGradFit fit;
  const DepthwiseTensors t = make_pixel_tensors(forward);
  const int core = find_row_core(forward, t);
  if (core < 0) return fit;
  const int taps = kRowGradCores[core].taps;
  const int64_t all_vectors = t.channels / kRowGradChannels;
  const int64_t whole = kSectorBytes / (kRowGradChannels * size_of(forward.dtype));
  const int64_t fewest = ceil_div(all_vectors, kMostVectors);
  for (int64_t factor = 1;; factor = next_size(factor)) {
    const int64_t vectors = round_up(ceil_div(all_vectors, fewest * factor), whole);
    const int64_t most_slices = std::max<int64_t>(1, kRowGradThreads / (vectors * taps));
    for (int64_t slices = 1; slices <= most_slices; ++slices) {
      fit_row_splits({forward, caps, t, core, vectors, slices}, fit);
    }
    if (vectors == whole) break;
  }
  return fit;
}

std::optional<RowWeightGradParams> make_row_weight_grad_params(const ConvProblem& problem,
                                                               const RowWeightGradFit& fit,
                                                               const Buffers& buffers) {
  if (fit.blocks == 0 || !is_aligned(buffers.x, problem.dtype, kRowGradChannels) ||
      !is_aligned(buffers.y, problem.dtype, kRowGradChannels)) {
    return {};
  }
  RowWeightGradParams p = fit.params;
  p.t.source = buffers.x, p.t.target = buffers.y;
  p.result = buffers.w;
  p.partials = static_cast<float*>(buffers.workspace);
  return p;
}

DepthwiseWeightGradFit fit_depthwise_weight_grad(const ConvProblem& problem,
                                                 const DeviceCaps& caps) {
  if (problem.K * problem.channels_per_group() * problem.taps() >= int64_t{1} << 31) return {};
  ConvProblem forward = problem;
  forward.pass = Pass::kForward;
  // Strips alone multiply pairs of a filter and a channel. The strides of a single column say
  // nothing about the layout.
  if (problem.groups < problem.C) {
    const bool has_planes = find_depthwise_layout(forward) == DepthwiseLayout::kPlanes &&
                            problem.W > 1 && problem.Q > 1;
    return has_planes ? fit_strip_weight_grad(forward, caps) : StripWeightGradFit{};
  }
  switch (find_depthwise_layout(forward)) {
    case DepthwiseLayout::kPlanes: {
      // Strips use neither shared memory nor element-wise copies. Tiles serve all other sizes.
      const StripWeightGradFit strips = fit_strip_weight_grad(forward, caps);
      if (strips.blocks > 0) return strips;
      return fit_pixel_weight_grad(forward, caps);
    }
    case DepthwiseLayout::kPixels: {
      PixelWeightGradFit tiles = fit_pixel_weight_grad(forward, caps);
      const RowWeightGradFit rows = fit_row_weight_grad(forward, caps);
      if (tiles.blocks > 0 && rows.blocks > 0 && rows.microseconds < tiles.microseconds) {
        tiles.rows = rows;
        tiles.microseconds = rows.microseconds;
        tiles.workspace_bytes = std::max(tiles.workspace_bytes, rows.workspace_bytes);
      }
      return tiles;
    }
    case DepthwiseLayout::kOther:
      break;
  }
  return {};
}

WeightGradSums make_weight_grad_sums(const ConvProblem& problem, int64_t splits,
                                     const Buffers& buffers) {
  WeightGradSums sums{};
  sums.partials = static_cast<const float*>(buffers.workspace);
  sums.target = buffers.w;
  sums.weights = problem.K * problem.channels_per_group() * problem.taps();
  sums.target_k = problem.w_strides.n, sums.target_c = problem.w_strides.c;
  sums.target_r = problem.w_strides.h, sums.target_s = problem.w_strides.w;
  sums.splits = static_cast<int>(splits);
  sums.channels = static_cast<int>(problem.channels_per_group());
  sums.rows = static_cast<int>(problem.R), sums.columns = static_cast<int>(problem.S);
  return sums;
}

}  // namespace convx
