#include <algorithm>
#include <iterator>

#include "engines/cuda_depthwise/depthwise_fit.h"
#include "engines/cuda_depthwise/depthwise_weight_grad_fit.h"

namespace convx {
namespace {

// How taps, channels and strips are shared out within a block.
struct BlockShape {
  int kernel_taps;  // of kPixelGradTaps
  int64_t group_rows, group_columns, row_groups, column_groups;
  int64_t chunks, pairs;
  int64_t block_groups, group_blocks, item_lanes;

  explicit BlockShape(const DepthwiseTensors& t) {
    const auto* const fits = std::find_if(std::begin(kPixelGradTaps), std::end(kPixelGradTaps) - 1,
                                          [&](int taps) { return t.column.taps <= taps; });
    kernel_taps = *fits;
    column_groups = ceil_div(t.column.taps, kernel_taps);
    group_columns = ceil_div(t.column.taps, column_groups);
    row_groups = ceil_div(t.row.taps, kPixelGradRows);
    group_rows = ceil_div(t.row.taps, row_groups);
    constexpr int64_t kMostPairs = 64;
    const int64_t all_pairs = ceil_div(t.channels, 2);
    chunks = ceil_div(all_pairs, kMostPairs);
    pairs = ceil_div(all_pairs, chunks);
    const int64_t groups = row_groups * column_groups;
    const int64_t most_groups = std::clamp<int64_t>(kPixelGradThreads / pairs, 1, groups);
    group_blocks = ceil_div(groups, most_groups);
    block_groups = ceil_div(groups, group_blocks);
    item_lanes = std::max<int64_t>(1, kPixelGradThreads / (pairs * block_groups));
  }
  int64_t threads() const { return pairs * block_groups * item_lanes; }
};

PixelWeightGradParams make_params(const ConvProblem& problem, const DepthwiseTensors& t,
                                  const BlockShape& block, int64_t strips,
                                  const StripShare& share) {
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  PixelWeightGradParams p{};
  p.t = t;
  p.partial_stride = problem.K * problem.taps();
  p.taps = narrow(problem.taps());
  p.items = narrow(share.items), p.items_per_part = narrow(share.per_part);
  p.segment_rows = narrow(share.rows);
  p.pairs = narrow(block.pairs), p.item_lanes = narrow(block.item_lanes);
  p.block_groups = narrow(block.block_groups);
  p.group_rows = narrow(block.group_rows), p.group_columns = narrow(block.group_columns);
  p.by_chunks = FastDivmod(block.chunks), p.by_group_blocks = FastDivmod(block.group_blocks);
  p.by_pairs = FastDivmod(block.pairs), p.by_item_lanes = FastDivmod(block.item_lanes);
  p.by_column_groups = FastDivmod(block.column_groups);
  p.by_strips = FastDivmod(strips), p.by_segments = FastDivmod(share.segments);
  return p;
}

// Shares the rows out among threads, and the strips among blocks; keeps the best.
void fit_parts(const ConvProblem& problem, const DeviceCaps& caps, const DepthwiseTensors& t,
               PixelWeightGradFit& fit) {
  const BlockShape block(t);
  const int64_t element = size_of(problem.dtype);
  const int64_t stride = t.column.source_step;
  const int64_t strips = ceil_div(t.column.count, kPixelGradColumns);
  const int64_t pixels = (kPixelGradColumns - 1) * stride + block.kernel_taps;  // of a row
  const int64_t loads = stride * pixels + kPixelGradColumns;
  const int64_t lead = ceil_div(block.group_rows, stride) - 1;  // steps behind the last row
  const double step_issue =
      kPixelGradStepIssue +
      static_cast<double>(loads) * (kStripLoadIssue + (element == 2 ? 2 : 0)) +
      static_cast<double>(2 * block.group_rows * kPixelGradColumns * block.kernel_taps);
  visit_strip_shares(problem, t.row.count, strips, block.item_lanes, [&](const StripShare& share) {
    const double steps = static_cast<double>(share.rows + lead);
    const double passes = static_cast<double>(share.rounds);
    StripWork work{};
    work.warps = static_cast<double>(ceil_div(block.threads(), 32));
    work.resident = pixel_grad_blocks(element, block.kernel_taps, static_cast<int>(stride));
    work.warp_issue = kStripSetupIssue +
                      static_cast<double>(block.group_rows * block.kernel_taps) * kStripSumIssue +
                      passes * (kStripSetupIssue + steps * step_issue);
    work.waits = passes * steps;
    // Groups of a block read the same, and neighbouring strips what lies between, from L1.
    work.moved_bytes =
        static_cast<double>(share.items * problem.C * block.group_blocks * element *
                            kPixelGradColumns) *
        (steps * static_cast<double>(stride * stride) + static_cast<double>(share.rows));
    work.load_bytes = static_cast<double>(2 * element);
    if (!take_if_sooner(problem, caps, share, block.group_blocks * block.chunks, work, fit)) {
      return;
    }
    fit.kernel_taps = block.kernel_taps;
    fit.threads = static_cast<int>(block.threads());
    fit.shared_bytes = block.threads() * 2 * block.kernel_taps * 4;
    fit.params = make_params(problem, t, block, strips, share);
  });
}

}  // namespace

PixelWeightGradFit fit_pixel_weight_grad(const ConvProblem& forward, const DeviceCaps& caps) {
  PixelWeightGradFit fit;
  const DepthwiseTensors t = make_pixel_tensors(forward);
  const auto slides = [&](const CudaAxis& axis) {
    return axis.offset_step == 1 && axis.source_step <= 2 && axis.lanes == 1 &&
           axis.source_step == t.row.source_step;
  };
  if (t.multiplier == 1 && slides(t.row) && slides(t.column)) fit_parts(forward, caps, t, fit);
  return fit;
}

PixelWeightGradParams make_pixel_weight_grad_params(const ConvProblem& problem,
                                                    const PixelWeightGradFit& fit,
                                                    const Buffers& buffers) {
  PixelWeightGradParams p = fit.params;
  p.t.source = buffers.x, p.t.target = buffers.y;
  p.partials = static_cast<float*>(buffers.workspace);
  const auto are_even = [](auto... distances) { return ((distances % 2 == 0) && ...); };
  p.paired = is_aligned(buffers.x, problem.dtype, 2) && is_aligned(buffers.y, problem.dtype, 2) &&
             are_even(p.t.channels, p.t.source_n, p.t.source_h, p.t.source_w, p.t.target_n,
                      p.t.target_h, p.t.target_w);
  return p;
}

}  // namespace convx
