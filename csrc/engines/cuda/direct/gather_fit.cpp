#include "engines/cuda/direct/gather_geometry.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/arithmetic.h"
#include "core/engine.h"
#include "engines/cuda/direct/direct_costs.h"
#include "planning/device_rates.h"

namespace convx {
namespace {

constexpr int64_t kMaxChunkChannels = 16;
// Warps copy runs of at least this length row by row. For shorter runs a table of positions pays
// off, but only if many channels share it.
constexpr int64_t kLongRun = 64;
constexpr int64_t kShortRun = 16;
constexpr int64_t kNoRun = std::numeric_limits<int64_t>::max();
constexpr int64_t kFewChannels = 4;
constexpr int64_t kTableEntryBytes = 16;

// Float32 input gradients are summed in accumulation chains of about this many terms, which are
// added in the target. The error of a chain grows with the square root of its length: a single
// chain had up to 5 times cuDNN's error on the seed workloads. Their forward pass is at cuDNN's
// level without chains.
constexpr int kChainLimit = 384;

// Rounds up to an odd multiple of four. Neighbours at that distance spread over all banks.
int64_t make_odd_fours(int64_t elements) {
  const int64_t fours = ceil_div(elements, 4);
  return 4 * (fours % 2 == 1 ? fours : fours + 1);
}

int64_t count_strips(const GatherAxis& axis) {
  return axis.lanes * ceil_div(axis.count_per_lane(), kStrip);
}

// With a large dilation, lanes can be shorter than a strip. Then taps that do not slide waste less.
GatherAxis fit_column_axis(const AxisPhase& phase) {
  const GatherAxis sliding = make_gather_axis(phase, true);
  const GatherAxis single = make_gather_axis(phase, false);
  return count_strips(sliding) * 5 <= count_strips(single) * 6 ? sliding : single;
}

// Shrinks a chunk of taps to a size that the kernel supports: multiples of the classes, then any.
int64_t shrink_taps(int64_t taps, int64_t classes) {
  if (taps > classes)
    return ceil_div(taps, 2 * classes) * classes < taps ? ceil_div(taps, 2 * classes) * classes
                                                        : classes;
  return ceil_div(taps, 2);
}

int64_t max_classes(const std::vector<GatherAxis>& axes) {
  int64_t classes = 1;
  for (const GatherAxis& axis : axes) classes = std::max(classes, axis.classes);
  return classes;
}

int64_t max_taps(const std::vector<GatherAxis>& axes) {
  int64_t taps = 1;
  for (const GatherAxis& axis : axes) taps = std::max(taps, axis.taps);
  return taps;
}

// The layout of an axis in shared memory, for chunks of chunk_taps taps.
struct StagedAxis {
  int64_t classes, taps_per_class;
};

StagedAxis stage_axis(const GatherAxis& axis, int64_t chunk_taps) {
  const int64_t taps = std::max<int64_t>(std::min(axis.taps, chunk_taps), 1);
  return {std::min(axis.classes, taps), ceil_div(taps, axis.classes)};
}

// How a row of strips is staged along the width. Runs of at least least_run columns are copied as
// whole rows.
struct StagedColumns {
  int64_t length;  // columns stored per class
  int64_t strips;  // separately stored strips; 1: one run of columns serves all
  int64_t class_pitch, strip_pitch, row_pitch;
  bool runs;  // a warp copies whole rows, without a table of positions
};

StagedColumns stage_columns(const GatherAxis& axis, int64_t chunk_taps, int64_t strips,
                            int64_t least_run) {
  const StagedAxis staged = stage_axis(axis, chunk_taps);
  const int64_t taps = staged.taps_per_class;
  const int64_t last = (taps - 1) / 4 * 4;  // start of the last group of up to four taps
  const int64_t window = last + (taps - last == 1 ? 8 : 12);
  StagedColumns columns;
  if (axis.lanes == 1) {
    columns.length = kStrip * strips + taps - 1;
    columns.strips = 1;
    columns.strip_pitch = kStrip;
    columns.class_pitch = kStrip * (strips - 1) + window;
    columns.row_pitch = make_odd_fours(staged.classes * columns.class_pitch);
  } else {
    columns.length = kStrip + taps - 1;
    columns.strips = strips;
    columns.class_pitch = window;
    columns.strip_pitch = make_odd_fours(staged.classes * window);
    columns.row_pitch = strips * columns.strip_pitch;
  }
  columns.runs = axis.lanes == 1 && columns.length >= least_run;
  return columns;
}

// Whether the source is channels_last, so that neighbouring threads copy channels.
bool is_channel_fastest(const Strides& strides) { return strides.c == 1 && strides.w != 1; }

// The source tile of one channel in a stage, for the largest phase.
struct Plane {
  int64_t elements = 0;
  int64_t positions = 0;  // entries of the table of positions; 0 if no phase needs it
};

Plane measure_plane(const GatherShape& shape) {
  int64_t rows = 0;
  for (const GatherAxis& axis : shape.rows_axes) {
    const StagedAxis staged = stage_axis(axis, shape.params.row_taps);
    rows = std::max(rows, staged.classes * (shape.params.rows + staged.taps_per_class - 1));
  }
  Plane plane;
  for (const GatherAxis& axis : shape.columns_axes) {
    const StagedColumns columns =
        stage_columns(axis, shape.params.column_taps, shape.params.strips, shape.least_run);
    plane.elements = std::max(plane.elements, shape.params.tile_images * rows * columns.row_pitch);
    if (columns.runs) continue;
    const int64_t classes = stage_axis(axis, shape.params.column_taps).classes;
    plane.positions = std::max(plane.positions, shape.params.tile_images * rows * columns.strips *
                                                    classes * columns.length);
  }
  return plane;
}

struct Budget {
  int64_t preferred;  // leaves room for as many blocks as the registers allow
  int64_t largest;
};

// Chooses the largest chunk of the reduction whose stages fit in shared memory.
void fit_chunk(GatherShape& shape, const ConvProblem& p, const GatherView& view, Budget budget) {
  const GatherConfig& config = kGatherConfigs[shape.config];
  const int64_t bytes = accumulate_bytes(p.dtype);
  const bool long_sums = view.source_channels * p.taps() > 2 * kChainLimit;
  const bool in_chains = p.pass == Pass::kInputGrad && p.dtype == DType::kFloat32 && long_sums;
  shape.params.chain_limit = in_chains ? kChainLimit : 0;
  // The epilogue's transpose reuses the stages, except between chains, when the stages are in use.
  const int64_t transpose = int64_t{config.threads()} * kStrip * bytes;
  if (in_chains) {
    budget.preferred -= transpose;
    budget.largest -= transpose;
  }
  shape.params.row_taps = narrow(max_taps(shape.rows_axes));
  shape.params.column_taps = narrow(max_taps(shape.columns_axes));
  const int64_t most_channels = std::min(view.source_channels, kMaxChunkChannels);
  const bool channel_fastest = is_channel_fastest(view.source_strides);
  // Bytes of the given number of stages and of the table.
  auto count_bytes_of = [&](int64_t channels, int64_t stages) {
    const Plane plane = measure_plane(shape);
    const int64_t source = ceil_div(channels * plane.elements, 4) * 4;
    const int64_t weights =
        ceil_div(channels * shape.params.row_taps * shape.params.column_taps * config.filters(),
                 4) *
        4;
    const int64_t table_offset = stages * (source + weights) * bytes;
    shape.params.weight_offset = narrow(source);
    shape.params.stage_elements = narrow(source + weights);
    shape.params.table_offset = narrow(table_offset);
    const int64_t step = channel_fastest ? config.threads() / channels : config.threads();
    const int64_t entries = ceil_div(plane.positions, step) * config.threads();
    return table_offset + entries * kTableEntryBytes;
  };
  auto count_stage = [&](int64_t channels) { return count_bytes_of(channels, 2); };
  while (count_stage(1) > budget.largest) {
    if (shape.params.row_taps > 1) {
      shape.params.row_taps =
          narrow(shrink_taps(shape.params.row_taps, max_classes(shape.rows_axes)));
    } else {
      shape.params.column_taps =
          narrow(shrink_taps(shape.params.column_taps, max_classes(shape.columns_axes)));
    }
  }
  const int64_t room = std::max(budget.preferred, count_stage(1));
  shape.params.channels = 1;
  // Powers of two divide the number of threads, as channels_last staging requires.
  while (shape.params.channels < most_channels && count_stage(2 * shape.params.channels) <= room) {
    shape.params.channels *= 2;
  }
  const int64_t stages = shape.params.channels >= view.source_channels &&
                                 shape.params.row_taps >= max_taps(shape.rows_axes) &&
                                 shape.params.column_taps >= max_taps(shape.columns_axes)
                             ? 1
                             : 2;
  const int64_t used = ceil_div(count_bytes_of(shape.params.channels, stages), 16) * 16;
  shape.params.transpose_offset = in_chains ? narrow(used) : 0;
  shape.shared_bytes = in_chains ? used + transpose : std::max(used, transpose);
}

void count_tiles(GatherShape& shape, const ConvProblem& p, const GatherView& view) {
  shape.params.filter_tiles =
      narrow(ceil_div(view.target_channels, kGatherConfigs[shape.config].filters()));
  shape.params.strip_tiles = shape.params.row_tiles = 1;
  for (const GatherAxis& axis : shape.columns_axes) {
    shape.params.strip_tiles = std::max(shape.params.strip_tiles,
                                        narrow(ceil_div(count_strips(axis), shape.params.strips)));
  }
  for (const GatherAxis& axis : shape.rows_axes) {
    const int64_t lane_tiles = ceil_div(axis.count_per_lane(), shape.params.rows);
    shape.params.row_tiles = std::max(shape.params.row_tiles, narrow(axis.lanes * lane_tiles));
  }
  shape.image_tiles = ceil_div(std::max<int64_t>(p.N, 1), shape.params.tile_images);
}

// Instructions that one thread issues for a block that covers the given taps.
double count_instructions(const GatherShape& shape, const ConvProblem& p, const GatherView& view,
                          double taps) {
  const GatherConfig& config = kGatherConfigs[shape.config];
  const double products = config.per_thread * kStrip;
  const double taps_per_window = std::clamp<double>(
      static_cast<double>(max_taps(shape.columns_axes)) / max_classes(shape.columns_axes), 1, 4);
  const double loads = std::max(1.0, config.per_thread / 4.0) + 3.0 / taps_per_window;
  const double multiply = taps * (products + kDirectLoadIssue * loads);
  const Plane plane = measure_plane(shape);
  const double source = static_cast<double>(plane.elements) / config.threads();
  const double weights = taps * config.filters() / 4.0 / config.threads();
  const double chunks = std::ceil(static_cast<double>(view.source_channels) /
                                  static_cast<double>(shape.params.channels));
  const double positions = static_cast<double>(plane.positions) / config.threads();
  const double store = shape.columns_axes.size() > 1 ? kDirectStridedStoreIssue : kDirectStoreIssue;
  return view.source_channels *
             (multiply +
              find_stage_issue(is_channel_fastest(view.source_strides), size_of(p.dtype)) * source +
              kDirectStageIssue * weights +
              kDirectRowIssue * std::max(1.0, taps / taps_per_window)) +
         chunks * (kDirectChunkIssue + kDirectEntryIssue * positions) +
         kDirectPositionIssue * positions + kDirectBlockIssue + products * store;
}

void estimate_time(GatherShape& shape, const ConvProblem& p, const GatherView& view,
                   const DeviceCaps& caps) {
  const GatherConfig& config = kGatherConfigs[shape.config];
  const double phases =
      static_cast<double>(shape.rows_axes.size()) * static_cast<double>(shape.columns_axes.size());
  double taps = 0, most_taps = 0;
  for (const GatherAxis& row : shape.rows_axes) {
    for (const GatherAxis& column : shape.columns_axes) {
      taps += static_cast<double>(row.taps * column.taps) / phases;
      most_taps = std::max(most_taps, static_cast<double>(row.taps * column.taps));
    }
  }
  const double blocks =
      phases * static_cast<double>(shape.params.filter_tiles * p.groups) *
      static_cast<double>(int64_t{shape.params.strip_tiles} * shape.params.row_tiles) *
      static_cast<double>(shape.image_tiles);
  const double warps = config.threads() / 32.0;
  const auto count_issue = [&](double block_taps) {
    return count_instructions(shape, p, view, block_taps) * warps / kDirectIssuePerCycle *
           (p.dtype == DType::kFloat64 ? float64_penalty(caps) : 1.0);
  };
  const auto by_shared = static_cast<double>(caps.count_blocks_by_shared(shape.shared_bytes));
  const double resident = std::clamp(by_shared, 1.0, 512.0 / config.threads());
  const double sms = std::max(caps.sm_count, 1);
  // Full waves keep every multiprocessor busy. In the last wave each has ceil(rest) blocks; if
  // these have too few warps to hide latency, they issue more slowly. Full waves mix blocks of all
  // phases; the last wave ends with the blocks of the phase with the most taps.
  const double waves = std::floor(blocks / (sms * resident));
  const double rest = std::ceil((blocks - waves * sms * resident) / sms);
  const double busy_warps = waves > 0 ? kDirectBusyWarps : kDirectLonelyWarps;
  const double lonely = rest > 0 ? std::max(1.0, busy_warps / (rest * warps)) : 1.0;
  const double hidden = std::max(1.0, kDirectBusyWarps / (resident * warps));
  const double cycles =
      waves * resident * hidden * count_issue(taps) + rest * lonely * count_issue(most_taps);
  const DeviceRates rates = rates_of(caps);
  const double arithmetic = cycles / (kDirectCyclesPerUs * rates.multiply);
  const double memory = count_bytes(p) / (kDirectBytesPerUs * rates.memory);
  shape.microseconds = kDirectLaunchUs + std::max(arithmetic, memory) + 0.3 * memory;
}

// Tries every sensible division of the block's strips into strips x rows x images.
GatherShape fit_pixels(GatherShape shape, const ConvProblem& p, const GatherView& view,
                       const DeviceCaps& caps) {
  const GatherConfig& config = kGatherConfigs[shape.config];
  const int64_t sm_shared = caps.shared_bytes_per_block + 1024;
  const int64_t resident = std::max(1, 512 / config.threads());
  const Budget budget{sm_shared / resident - 1024, caps.shared_bytes_per_block};
  int64_t row_strips = 1, rows = 1;
  for (const GatherAxis& axis : shape.columns_axes) {
    row_strips = std::max(row_strips, count_strips(axis));
  }
  for (const GatherAxis& axis : shape.rows_axes) rows = std::max(rows, axis.count_per_lane());
  GatherShape best;
  for (int64_t width = 1;; width *= 2) {
    shape.params.strips = narrow(std::min<int64_t>({width, row_strips, config.strips()}));
    const int64_t most_rows = std::min<int64_t>(config.strips() / shape.params.strips, rows);
    // Equal tiles: 14 rows become two tiles of 7, not one of 8 and one of 6.
    shape.params.rows = narrow(ceil_div(rows, ceil_div(rows, most_rows)));
    shape.params.tile_images = narrow(std::min<int64_t>(
        config.strips() / (shape.params.strips * shape.params.rows), std::max<int64_t>(p.N, 1)));
    fit_chunk(shape, p, view, budget);
    count_tiles(shape, p, view);
    estimate_time(shape, p, view, caps);
    if (best.config < 0 || shape.microseconds < best.microseconds) best = shape;
    if (width >= std::min<int64_t>(row_strips, config.strips())) return best;
  }
}

AxisParams make_axis_params(const GatherAxis& axis, const StagedAxis& staged) {
  AxisParams params{};
  params.count = narrow(axis.count);
  params.target_start = narrow(axis.target_start), params.target_step = narrow(axis.target_step);
  params.source_step = narrow(axis.source_step);
  params.taps = narrow(axis.taps);
  params.tap0 = narrow(axis.tap0), params.tap_step = narrow(axis.tap_step);
  params.offset0 = narrow(axis.offset0), params.offset_step = narrow(axis.offset_step);
  params.lanes = narrow(axis.lanes), params.classes = narrow(axis.classes);
  params.period = narrow(axis.period);
  params.staged_classes = narrow(staged.classes);
  params.by_staged_classes = FastDivmod(params.staged_classes);
  params.by_lanes = FastDivmod(params.lanes);
  return params;
}

AxisParams make_row_params(const GatherAxis& axis, const GatherShape& shape) {
  const StagedAxis staged = stage_axis(axis, shape.params.row_taps);
  AxisParams params = make_axis_params(axis, staged);
  params.staged_length = narrow(shape.params.rows + staged.taps_per_class - 1);
  params.by_staged_length = FastDivmod(params.staged_length);
  return params;
}

AxisParams make_column_params(const GatherAxis& axis, const GatherShape& shape) {
  AxisParams params = make_axis_params(axis, stage_axis(axis, shape.params.column_taps));
  const StagedColumns staged =
      stage_columns(axis, shape.params.column_taps, shape.params.strips, shape.least_run);
  params.staged_length = narrow(staged.length);
  params.staged_strips = narrow(staged.strips);
  params.class_pitch = narrow(staged.class_pitch);
  params.strip_pitch = narrow(staged.strip_pitch);
  params.row_pitch = narrow(staged.row_pitch);
  params.runs = staged.runs;
  params.by_staged_length = FastDivmod(params.staged_length);
  params.by_staged_strips = FastDivmod(params.staged_strips);
  return params;
}

// Fills as many phases as one launch covers and returns their number.
template <typename MakeParams>
int set_phases(AxisParams* params, const std::vector<GatherAxis>& axes, int64_t first,
               const MakeParams& make_params) {
  const AxisParams& before = params[kPhasesPerLaunch - 1];
  int prefix = first == 0 ? 0 : before.tap_prefix + before.taps;
  const int64_t left = static_cast<int64_t>(axes.size()) - first;
  const int count = narrow(std::min<int64_t>(left, kPhasesPerLaunch));
  for (int i = 0; i < count; ++i) {
    params[i] = make_params(axes[first + i]);
    params[i].tap_prefix = prefix;
    prefix += params[i].taps;
  }
  return count;
}

}  // namespace

double bound_gather_us(const ConvProblem& problem, const DeviceCaps& caps) {
  const GatherTensors view = make_gather_tensors(problem);
  const double products =
      count_gather_products(problem) / static_cast<double>(view.target_channels);
  const double sources = static_cast<double>(problem.N * problem.groups * view.source_channels) *
                         static_cast<double>(view.target_h * view.target_w);
  const double stage =
      find_stage_issue(is_channel_fastest(view.source_strides), size_of(problem.dtype));
  double issue = std::numeric_limits<double>::infinity();  // of all threads
  for (const GatherConfig& config : kGatherConfigs) {
    const auto tiles = static_cast<double>(ceil_div(view.target_channels, config.filters()));
    const double loads = std::max(1.0, config.per_thread / 4.0) + 0.75;
    const double multiply = 1 + kDirectLoadIssue * loads / (config.per_thread * kStrip);
    // Empty filters of a tile take as long as others, and every tile stages the source itself.
    issue = std::min(issue, tiles * (config.filters() * products * multiply + sources * stage));
  }
  const double penalty = problem.dtype == DType::kFloat64 ? float64_penalty(caps) : 1;
  const double cycles = issue / (32 * kDirectIssuePerCycle) * penalty / std::max(caps.sm_count, 1);
  const DeviceRates rates = rates_of(caps);
  const double memory = count_bytes(problem) / (kDirectBytesPerUs * rates.memory);
  const double arithmetic = cycles / (kDirectCyclesPerUs * rates.multiply);
  return kBoundFactor * (kDirectLaunchUs + std::max(arithmetic, memory) + 0.3 * memory);
}

GatherShape fit_gather_shape(const ConvProblem& problem, const DeviceCaps& caps) {
  const GatherView view = make_gather_view(problem);
  GatherShape base;
  for (const AxisPhase& phase : view.rows) base.rows_axes.push_back(make_gather_axis(phase, true));
  for (const AxisPhase& phase : view.columns) base.columns_axes.push_back(fit_column_axis(phase));
  base.least_run = is_channel_fastest(view.source_strides) ? kNoRun
                   : view.source_channels <= kFewChannels  ? kShortRun
                                                           : kLongRun;
  GatherShape best;
  for (int i = 0; i < kGatherConfigCount; ++i) {
    if (kGatherConfigs[i].float32_only && problem.dtype != DType::kFloat32) continue;
    base.config = i;
    GatherShape shape = fit_pixels(base, problem, view, caps);
    shape.packed_bytes = problem.groups * shape.params.filter_tiles * kGatherConfigs[i].filters() *
                         view.source_channels * problem.taps() * accumulate_bytes(problem.dtype);
    if (best.config < 0 || shape.microseconds < best.microseconds) best = shape;
  }
  return best;
}

void set_row_phases(GatherParams& params, const GatherShape& shape, int64_t first) {
  params.row_phases = set_phases(params.row, shape.rows_axes, first, [&](const GatherAxis& axis) {
    return make_row_params(axis, shape);
  });
}

void set_column_phases(GatherParams& params, const GatherShape& shape, int64_t first) {
  params.column_phases =
      set_phases(params.column, shape.columns_axes, first,
                 [&](const GatherAxis& axis) { return make_column_params(axis, shape); });
}

GatherShape complete_gather(const ConvProblem& problem, GatherShape shape, bool packed) {
  const GatherView view = make_gather_view(problem);
  GatherParams& p = shape.params;
  p.source_strides = view.source_strides, p.target_strides = view.target_strides;
  p.weight_group_stride = problem.filters_per_group() * problem.w_strides.n;
  p.weight_target_stride = view.weight_target_stride;
  p.weight_source_stride = view.weight_source_stride;
  p.weight_r_stride = problem.w_strides.h;
  p.weight_s_stride = problem.w_strides.w;
  p.images = narrow(problem.N);
  p.source_h = narrow(view.source_h);
  p.source_w = narrow(view.source_w);
  p.source_channels = narrow(view.source_channels);
  p.target_channels = narrow(view.target_channels);
  p.groups = narrow(problem.groups);
  for (const GatherAxis& axis : shape.columns_axes) {
    p.all_column_taps += narrow(axis.taps);
  }
  p.packed = packed;
  p.channel_fastest = is_channel_fastest(view.source_strides);
  p.by_strips = FastDivmod(p.strips), p.by_rows = FastDivmod(p.rows);
  set_row_phases(p, shape, 0);
  set_column_phases(p, shape, 0);
  return shape;
}

}  // namespace convx
