#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/engine.h"
#include "core/gather_view.h"
#include "engines/cuda/depthwise/depthwise_costs.h"
#include "engines/cuda/depthwise/weight_grad_geometry.h"
#include "planning/boxed_tensor.h"
#include "planning/gather_axis.h"

namespace convx {
namespace {

// The axis for a kernel that has this stride compiled in.
CudaAxis make_axis(const AxisPhase& phase, int core_stride) {
  CudaAxis axis = make_cuda_axis(make_gather_axis(phase, true));
  if (core_stride == 1) return axis;
  axis.lanes = axis.classes = axis.period = 1;
  axis.class_taps = axis.taps, axis.longer_classes = 0;
  return axis;
}
bool serves(const PixelGradCore& core, const GatherView& view) {
  const auto has_stride = [&](const AxisPhase& phase) {
    const GatherAxis axis = make_gather_axis(phase, false);
    return axis.source_step == core.stride && axis.offset_step == 1;
  };
  return core.stride == 1 || (has_stride(view.rows[0]) && has_stride(view.columns[0]));
}

// The groups of taps along an axis.
struct TapGroups {
  int64_t taps, groups;  // taps per group; groups of all classes
  TapGroups(const CudaAxis& axis, int most) {
    const int64_t class_groups = ceil_div(axis.most_class_taps(), most);
    taps = ceil_div(axis.most_class_taps(), class_groups);
    groups = class_groups * axis.classes;
  }
};

// Elements between pixels in shared memory: the channels of a chunk plus the padding that spreads
// the threads of a warp, which work on different strips, over the banks best.
int64_t choose_pitch(int64_t chunk, int64_t unit, int64_t element, const PixelGradCore& core,
                     int64_t vectors, int64_t threads, bool in_planes) {
  constexpr int kBanks = 32, kMostPads = 8;
  const int64_t channels = pixel_grad_channels(core.taps);
  const int64_t step = std::max<int64_t>(unit, std::max<int64_t>(channels, 4 / element));
  if (in_planes) {  // neighbouring threads write neighbouring pixels
    const int64_t pitch = round_up(chunk, step);
    return pitch / step % 2 == 0 ? pitch + step : pitch;
  }
  const int64_t lanes = std::min<int64_t>(32, 32 * 4 / std::max<int64_t>(4, channels * element));
  // Wavefronts of the threads from `first` to `end`, which load at once.
  const auto count_together = [&](int pitch, int64_t first, int64_t end) {
    int used[kBanks] = {};  // 1 + the last word read in the bank; number of different words
    int words[kBanks] = {};
    int longest = 0, vector = narrow(first % vectors), strip = narrow(first / vectors);
    for (int64_t i = first; i < end; ++i) {
      const int place = strip * kPixelGradColumns * core.stride * pitch + vector * narrow(channels);
      const int word = place * narrow(element) / 4;
      if (++vector == vectors) vector = 0, ++strip;
      if (used[word % kBanks] == word + 1) continue;
      used[word % kBanks] = word + 1;
      longest = std::max(longest, ++words[word % kBanks]);
    }
    return longest;
  };
  // If all begin at the same vector, or read vectors of one strip, they read the same words with
  // offsets that are multiples of a word.
  const bool are_alike = lanes % vectors == 0 || vectors % lanes == 0;
  const auto count_wavefronts = [&](int pitch) {
    int64_t first = 0;
    int total = 0;
    if (are_alike && threads >= lanes) {
      total = narrow(threads / lanes) * count_together(pitch, 0, lanes);
      first = threads / lanes * lanes;
    }
    for (; first < threads; first += lanes) {
      total += count_together(pitch, first, std::min(first + lanes, threads));
    }
    return total;
  };
  const int unpadded = narrow(round_up(chunk, step));
  const int ideal = narrow(ceil_div(threads, lanes));
  int best = unpadded, fewest = count_wavefronts(best);
  // A pad has to save a tenth of the wavefronts.
  for (int pad = 1; pad <= kMostPads && ideal * 10 < fewest * 9; ++pad) {
    const int pitch = unpadded + pad * narrow(step);
    if (pitch > 2 * best) break;
    const int found = count_wavefronts(pitch);
    if (found * 10 < fewest * 9) best = pitch, fewest = found;
  }
  return best;
}

constexpr int64_t kBoxAlignment = 128;  // of a box in shared memory, in bytes

// The distribution of a block's threads; lay_out adds that of its shared memory.
struct BlockShape {
  PixelWeightGradParams p{};  // what does not depend on the items
  int64_t chunks, tiles;

  BlockShape(const ConvProblem& problem, const DepthwiseTensors& t, const PixelGradCore& core,
             int64_t most_vectors, int64_t extra_tiles) {
    const int64_t element = size_of(problem.dtype);
    const int64_t channels = pixel_grad_channels(core.taps);
    p.t = t;
    p.partial_stride = problem.K * problem.taps();
    p.taps = narrow(problem.taps());
    p.in_planes = t.source_c != 1 || t.target_c != 1;
    p.unit = p.in_planes
                 ? 1
                 : fit_unit(element, t.channels, problem.N > 1 ? t.source_n : 0, t.source_h,
                            t.source_w, problem.N > 1 ? t.target_n : 0, t.target_h, t.target_w);
    const int64_t whole = std::max<int64_t>(p.unit, channels);
    chunks = ceil_div(t.channels, most_vectors * channels);
    p.chunk = narrow(round_up(ceil_div(t.channels, chunks), whole));
    chunks = ceil_div(t.channels, p.chunk);
    p.vectors = narrow(ceil_div(p.chunk, channels));
    const int64_t lane_columns = ceil_div(t.column.count, t.column.lanes);
    const int64_t all_strips = ceil_div(lane_columns, kPixelGradColumns);
    tiles = ceil_div(all_strips, std::max(1, kPixelGradThreads / p.vectors)) + extra_tiles;
    p.strips = narrow(ceil_div(all_strips, tiles));
    tiles = ceil_div(all_strips, p.strips);
    p.tile_columns = p.strips * kPixelGradColumns;
    const TapGroups columns(t.column, core.taps);
    p.row_pixels = narrow((p.tile_columns - 1) * core.stride + columns.taps);
  }
  void lay_out(const ConvProblem& problem, const DeviceCaps& caps, const PixelGradCore& core) {
    const int64_t element = size_of(problem.dtype);
    const int exact_pixels = p.row_pixels;
    p.pitch =
        narrow(choose_pitch(p.chunk, p.unit, element, core, p.vectors, threads(), p.in_planes));
    // More pixels, up to whole 128 bytes, let TMA copy rows of any whole 16 bytes per pixel.
    p.row_pixels =
        narrow(round_up(exact_pixels, kBoxAlignment / std::gcd(kBoxAlignment, p.pitch * element)));
    p.uses_boxes = find_boxes(problem, caps);
    if (!p.uses_boxes) p.row_pixels = exact_pixels;
    const int64_t window = pixel_grad_window(core.taps, core.stride);
    const int64_t aligned = kBoxAlignment / element;
    p.target_offset = narrow(round_up(window * core.stride * p.row_pixels * p.pitch, aligned));
    // Threads read up to core.taps pixels from their first one on, even if they need fewer.
    p.stage_elements = narrow(
        round_up(p.target_offset + (window * p.tile_columns + core.taps) * p.pitch, aligned));
  }
  // Whether TMA can copy rows. It adds no padding to pixels.
  bool find_boxes(const ConvProblem& problem, const DeviceCaps& caps) const {
    const int64_t element = size_of(problem.dtype), pixel_bytes = p.pitch * element;
    const auto fits = [&](int64_t pixels, int64_t step) {
      return step <= kMaxBoxStep && (pixels - 1) * step + 1 <= kMaxBoxSpan &&
             pixels * pixel_bytes % kBoxAlignment == 0;
    };
    return caps.compute_major == 9 && caps.wgmma && !p.in_planes && p.unit * element == 16 &&
           p.pitch == p.chunk && p.chunk <= kMaxBoxSpan &&
           has_boxes(problem.x_strides, problem.C, element) &&
           has_boxes(problem.y_strides, problem.K, element) &&
           fits(p.row_pixels, p.t.column.period) && fits(p.tile_columns, p.t.column.lanes);
  }
  int64_t threads() const { return int64_t{p.vectors} * p.strips; }
};

struct Candidate {
  const ConvProblem& problem;
  const DeviceCaps& caps;
  const DepthwiseTensors& t;
  double least_bytes;  // count_bytes(problem)
  int core;
  const BlockShape& block;
  TapGroups rows, columns;
  int64_t shared_bytes = 0, resident = 0, stages = 0;

  // Blocks of a split.
  int64_t split_blocks() const { return block.chunks * rows.groups * columns.groups; }
};

// Warp instructions per step: multiply-adds and loads from shared memory.
double count_product_issue(const Candidate& c) {
  constexpr double kLoadIssue = 2, kRowIssue = 3, kStepIssue = 20;
  const PixelGradCore& core = kPixelGradCores[c.core];
  const int64_t element = size_of(c.problem.dtype), channels = pixel_grad_channels(core.taps);
  const int64_t pixels = (kPixelGradColumns - 1) * core.stride + core.taps;
  const int64_t loads = core.stride * pixels + kPixelGradColumns;
  const double convert = element == 2 ? static_cast<double>(channels) : 0;
  return static_cast<double>(c.rows.taps * kPixelGradColumns * core.taps * channels) +
         static_cast<double>(loads) * (kLoadIssue + convert) +
         static_cast<double>(c.rows.taps) * kRowIssue + kStepIssue;
}

// Instructions of the copies, once the block is laid out.
double count_copy_issue(const Candidate& c) {
  constexpr double kCopyIssue = 18;
  // Copies of single elements, which also take more of the load-store units; those of 16 bits are
  // not asynchronous. Fitted to a dilated 3x3 and a 31x31 layer (H200, 2026-11-18).
  constexpr double kElementIssue = 45, kShortElementIssue = 140;
  constexpr double kBoxIssue = 20;  // of one warp
  const PixelGradCore& core = kPixelGradCores[c.core];
  const int64_t element = size_of(c.problem.dtype);
  const int64_t copied = core.stride * c.block.p.row_pixels + c.block.p.tile_columns;
  const int64_t units = copied * ceil_div(c.block.p.chunk, c.block.p.unit);
  const double copy_issue = !c.block.p.in_planes ? kCopyIssue
                            : element == 2       ? kShortElementIssue
                                                 : kElementIssue;
  if (c.block.p.uses_boxes) {
    return static_cast<double>(core.stride + 1) * kBoxIssue /
           static_cast<double>(ceil_div(c.block.threads(), 32));
  }
  return static_cast<double>(ceil_div(units, c.block.threads())) * copy_issue;
}

constexpr double kIssuePerCycle = 2.8, kWarpIssue = 0.3, kItemIssue = 120;
constexpr double kBoxOverlap = 0.05, kCopyOverlap = 0.15;  // of work and memory: neither hides all

// How an item's rows are cut.
struct Segments {
  int64_t rows, count;
  int64_t steps;  // of an item
  int64_t items;  // of all images

  Segments(const Candidate& c, int64_t lane_rows, int64_t wanted) {
    rows = ceil_div(lane_rows, wanted), count = ceil_div(lane_rows, rows);
    steps = rows + ceil_div(c.rows.taps, kPixelGradCores[c.core].stride) - 1;
    const int64_t lanes = int64_t{c.t.row.lanes} * c.t.column.lanes;
    items = c.problem.N * lanes * count * c.block.tiles;
  }
};

// Bytes that the copies of all blocks read.
double count_moved_bytes(const Candidate& c, const Segments& segments) {
  const PixelWeightGradParams& p = c.block.p;
  return static_cast<double>(segments.items * c.split_blocks() * p.chunk) *
         static_cast<double>(size_of(c.problem.dtype)) *
         static_cast<double>(segments.steps * kPixelGradCores[c.core].stride * p.row_pixels +
                             segments.rows * p.tile_columns);
}

// How much longer memory takes for `least` bytes. DRAM delivers 64 bytes at once. Smaller pieces of
// a pixel share them with other blocks.
double find_narrow_share(const Candidate& c) {
  const PixelWeightGradParams& p = c.block.p;
  const bool is_narrow =
      c.block.chunks > 1 && !p.in_planes && p.chunk * size_of(c.problem.dtype) < 64;
  return is_narrow ? 1.2 : 1;
}

double count_second_pass_us(const Candidate& c) {
  return c.block.p.in_planes ? kStripSecondPassUs : kPixelGradSecondPassUs;
}

// A lower bound of the prediction for these segments and any number of splits: multiprocessors are
// never idle, and each weight has one partial sum. Before the block is laid out, step_issue has no
// copies and boxes are assumed, which are the fastest.
double bound_segments(const Candidate& c, const Segments& segments, double step_issue,
                      bool uses_boxes) {
  const double sms = std::max(c.caps.sm_count, 1);
  const auto warps = static_cast<double>(ceil_div(c.block.threads(), 32));
  const auto items = static_cast<double>(segments.items * c.split_blocks());
  const double issue = items * (kItemIssue + static_cast<double>(segments.steps) * step_issue);
  const double compute = warps * issue / sms / kIssuePerCycle / kDepthwiseCyclesPerUs;
  const double least = c.least_bytes + 8.0 * static_cast<double>(c.problem.K * c.problem.taps());
  const double memory =
      (least / (uses_boxes ? kBoxBytesPerUs : kStripBytesPerUs) * find_narrow_share(c) +
       std::max(0.0, count_moved_bytes(c, segments) - least) / kDepthwiseExcessBytesPerUs) *
      kDepthwiseReferenceSms / sms;
  return kBoundFactor * (kDepthwiseLaunchUs + count_second_pass_us(c) + std::max(compute, memory) +
                         (uses_boxes ? kBoxOverlap : kCopyOverlap) * std::min(compute, memory));
}

// Cuts rows into segments, distributes the items among blocks, and keeps the fastest choice.
void fit_splits(const Candidate& c, PixelWeightGradFit& fit) {
  const ConvProblem& problem = c.problem;
  const PixelGradCore& core = kPixelGradCores[c.core];
  const BlockShape& block = c.block;
  const double element = static_cast<double>(size_of(problem.dtype));
  const double sms = std::max(c.caps.sm_count, 1);
  const double scale = sms / kDepthwiseReferenceSms;
  const double warps = static_cast<double>(ceil_div(block.threads(), 32));
  const double step_issue = count_product_issue(c) + count_copy_issue(c);
  const double narrow_share = find_narrow_share(c);
  const int64_t lane_rows = ceil_div(c.t.row.count, c.t.row.lanes);
  const int64_t split_blocks = c.split_blocks();
  const int64_t slots = c.resident * std::max(c.caps.sm_count, 1);
  const int64_t window = pixel_grad_window(core.taps, core.stride);
  for (int64_t wanted = 1; wanted <= lane_rows; wanted = next_size(wanted)) {
    const Segments cut(c, lane_rows, wanted);
    const auto [segment, segments, steps, items] = cut;
    if (items >= int64_t{1} << 30) return;
    if (fit.blocks > 0 &&
        bound_segments(c, cut, step_issue, block.p.uses_boxes) >= fit.microseconds) {
      continue;
    }
    const double moved = count_moved_bytes(c, cut);
    int64_t tried = 0;
    for (int64_t waves = 1; waves <= 4; ++waves) {
      const int64_t per_split = ceil_div(items, std::max<int64_t>(1, waves * slots / split_blocks));
      const int64_t splits = ceil_div(items, per_split);
      if (splits == tried) continue;
      tried = splits;
      const int64_t blocks = splits * split_blocks;
      const int64_t workspace = splits * problem.K * problem.taps() * 4;
      if (blocks >= int64_t{1} << 31 || workspace > c.caps.workspace_limit) continue;
      const double per_sm = std::ceil(static_cast<double>(blocks) / sms);
      const double together = std::min<double>(per_sm, static_cast<double>(c.resident));
      const double rate = std::min(kIssuePerCycle, kWarpIssue * together * warps);
      const double block_items = static_cast<double>(per_split);
      const double block_issue =
          kStripSetupIssue + static_cast<double>(c.rows.taps * core.taps) * kStripSumIssue +
          block_items * (kItemIssue + static_cast<double>(steps) * step_issue);
      const double compute = per_sm * warps * block_issue / rate / kDepthwiseCyclesPerUs;
      const double least = c.least_bytes + 2.0 * static_cast<double>(workspace);
      // Fewer blocks than multiprocessors do not fill the memory's queues.
      const double spread = std::min(1.0, static_cast<double>(blocks) / sms);
      const double rate_of_memory = block.p.uses_boxes ? kBoxBytesPerUs : kStripBytesPerUs;
      const double memory = (least / rate_of_memory * narrow_share +
                             std::max(0.0, moved - least) / kDepthwiseExcessBytesPerUs) /
                            scale / spread;
      const double block_stages = block_items * static_cast<double>(ceil_div(steps, window));
      // cp.async cannot copy single 16-bit elements.
      const double ahead =
          block.p.in_planes && element == 2 ? 0.5 : static_cast<double>(c.stages - 1);
      const double latency = std::ceil(per_sm / static_cast<double>(c.resident)) *
                             (1 + block_stages / ahead) * kStripLatencyUs;
      const double us =
          kDepthwiseLaunchUs + count_second_pass_us(c) + std::max({compute, memory, latency}) +
          (block.p.uses_boxes ? kBoxOverlap : kCopyOverlap) * std::min(compute, memory);
      if (fit.blocks > 0 && us >= fit.microseconds) continue;
      fit.microseconds = us;
      fit.blocks = blocks, fit.splits = splits, fit.workspace_bytes = workspace;
      fit.shared_bytes = c.shared_bytes;
      fit.core = c.core;
      fit.threads = narrow(block.threads());
      PixelWeightGradParams& p = fit.params = block.p;
      p.items = narrow(items), p.splits = narrow(splits), p.segment_rows = narrow(segment);
      p.group_rows = narrow(c.rows.taps), p.group_columns = narrow(c.columns.taps);
      p.stages = narrow(c.stages);
      p.by_chunks = FastDivmod(block.chunks), p.by_vectors = FastDivmod(p.vectors);
      p.by_row_groups = FastDivmod(c.rows.groups);
      p.by_column_groups = FastDivmod(c.columns.groups);
      p.by_tiles = FastDivmod(block.tiles), p.by_segments = FastDivmod(segments);
      p.by_column_lanes = FastDivmod(c.t.column.lanes), p.by_row_lanes = FastDivmod(c.t.row.lanes);
      p.by_row_pixels = FastDivmod(p.row_pixels), p.by_tile_columns = FastDivmod(p.tile_columns);
    }
  }
}

void set_unit(PixelWeightGradParams& p, int unit, int threads) {
  p.unit = unit;
  if (p.in_planes) {
    p.pixel_lanes = std::min(p.row_pixels, threads);
    p.line_lanes = threads / p.pixel_lanes;
    p.by_pixel_lanes = FastDivmod(p.pixel_lanes), p.by_chunk = FastDivmod(p.chunk);
    return;
  }
  p.pixel_units = narrow(std::min<int64_t>(ceil_div(p.chunk, unit), threads));
  p.by_pixel_units = FastDivmod(p.pixel_units);
  p.pixel_lanes = threads / p.pixel_units;
}

void fit_core(const ConvProblem& problem, const DeviceCaps& caps, const DepthwiseTensors& t,
              int core_index, PixelWeightGradFit& fit) {
  constexpr int64_t kRegisters = 65536;
  const PixelGradCore& core = kPixelGradCores[core_index];
  const int64_t element = size_of(problem.dtype);
  const double least_bytes = count_bytes(problem);
  const TapGroups rows(t.row, core.taps), columns(t.column, core.taps);
  const int64_t lane_rows = ceil_div(t.row.count, t.row.lanes);
  for (const int64_t most_vectors : {16, 32, 64}) {
    int64_t tiles = 0;
    for (int64_t extra_tiles = 0; extra_tiles < 4; ++extra_tiles) {
      BlockShape block(problem, t, core, most_vectors, extra_tiles);
      if (block.tiles == std::exchange(tiles, block.tiles)) continue;  // the same block
      Candidate shape{problem, caps, t, least_bytes, core_index, block, rows, columns};
      // Whole rows have the fewest steps.
      const Segments whole(shape, lane_rows, 1);
      if (fit.blocks > 0 &&
          bound_segments(shape, whole, count_product_issue(shape), true) >= fit.microseconds) {
        continue;
      }
      block.lay_out(problem, caps, core);
      const int64_t threads = round_up(block.threads(), 32);
      const int64_t registers = kRegisters / kPixelGradThreads / pixel_grad_blocks(core.taps);
      const int64_t sums_bytes = block.threads() * core.taps * pixel_grad_channels(core.taps) * 4;
      for (int64_t stages = 2; stages <= kPixelGradMostStages; ++stages) {
        const int64_t bytes = kPixelGradBarrierBytes +
                              std::max(stages * block.p.stage_elements * element, sums_bytes);
        if (bytes > caps.shared_bytes_per_block) break;
        const int64_t resident = std::clamp<int64_t>(
            std::min(caps.count_blocks_by_shared(bytes), kRegisters / (registers * threads)), 1,
            16);
        shape.shared_bytes = bytes, shape.resident = resident, shape.stages = stages;
        fit_splits(shape, fit);
      }
    }
  }
}

}  // namespace

PixelWeightGradFit fit_pixel_weight_grad(const ConvProblem& forward, const DeviceCaps& caps) {
  PixelWeightGradFit fit;
  const GatherView view = make_gather_view(forward);
  DepthwiseTensors t = make_pixel_tensors(forward);
  if (t.multiplier != 1) return fit;
  for (int index = 0; index < narrow(std::size(kPixelGradCores)); ++index) {
    const PixelGradCore& core = kPixelGradCores[index];
    if (!serves(core, view)) continue;
    t.row = make_axis(view.rows[0], core.stride);
    t.column = make_axis(view.columns[0], core.stride);
    fit_core(forward, caps, t, index, fit);
    // Larger cores would have accumulators without a tap.
    if (std::max(t.row.most_class_taps(), t.column.most_class_taps()) <= core.taps) break;
  }
  if (fit.blocks > 0) set_unit(fit.params, fit.params.unit, fit.threads);
  return fit;
}

PixelWeightGradParams make_pixel_weight_grad_params(const ConvProblem& problem,
                                                    const PixelWeightGradFit& fit,
                                                    const Buffers& buffers) {
  PixelWeightGradParams p = fit.params;
  p.t.source = buffers.x, p.t.target = buffers.y;
  p.partials = static_cast<float*>(buffers.workspace);
  const int64_t element = size_of(problem.dtype);
  const int unit =
      fit_unit_to_address(buffers.y, element, fit_unit_to_address(buffers.x, element, p.unit));
  if (unit < p.unit) {
    set_unit(p, unit, fit.threads);
    p.uses_boxes = false;
  }
  return p;
}

}  // namespace convx
