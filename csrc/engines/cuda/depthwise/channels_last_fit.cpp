// The tiles of channels_last_kernel.cuh.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/arithmetic.h"
#include "core/engine.h"
#include "core/gather_view.h"
#include "engines/cuda/depthwise/depthwise_costs.h"
#include "engines/cuda/depthwise/depthwise_geometry.h"

namespace convx {
namespace {

// Sets the width of the copies to `unit` elements.
void set_channels_last_unit(ChannelsLastParams& p, int unit) {
  const int64_t units = p.chunk / unit;
  set_stage_units(p.stage, units * p.staged_cols, unit, kDepthwiseThreads);
  p.by_pixel_units = FastDivmod(units);
}

constexpr double kSectorBytes = 32;
constexpr double kRunBytes = 16;        // overhead of a contiguous run, in bytes
constexpr int kChannelsLastBlocks = 5;  // resident ones, at most

struct ChannelsLastTile {
  int64_t rows, columns, channels;  // rows per lane
};

// The place of a tile of the channels_last kernel in shared memory.
struct ChannelsLastStage {
  ChannelsLastTile tile;
  int64_t staged_rows, staged_columns, line_pitch;
  int64_t weights_offset, shared_bytes;

  ChannelsLastStage(const DepthwiseTensors& t, int64_t element_bytes, const ChannelsLastTile& size)
      : tile(size),
        staged_rows(t.row.count_span(t.row.lanes * tile.rows)),
        staged_columns(t.column.count_span(tile.columns)),
        line_pitch(staged_columns * tile.channels),
        weights_offset(round_up(staged_rows * line_pitch * element_bytes, 16)),
        shared_bytes(weights_offset + int64_t{t.row.taps} * t.column.taps * tile.channels * 4) {}
};

// A stage with the blocks that use it.
struct ChannelsLastLayout : ChannelsLastStage {
  int64_t chunks, column_tiles, row_tiles;
  FilterShares shares;
  int64_t blocks;
  int64_t row_groups, cells;

  ChannelsLastLayout(const ConvProblem& problem, const DeviceCaps& caps, const DepthwiseTensors& t,
                     const ChannelsLastStage& stage)
      : ChannelsLastStage(stage),
        chunks(ceil_div(t.channels, tile.channels)),
        column_tiles(ceil_div(t.column.count, tile.columns)),
        row_tiles(ceil_div(t.row.count, t.row.lanes * tile.rows)),
        shares(t.multiplier, problem.N * chunks * column_tiles * row_tiles, caps.sm_count),
        blocks(problem.N * chunks * column_tiles * row_tiles * shares.shares),
        row_groups(tile.rows / kChannelsLastRows),
        cells(tile.channels / kDepthwiseVector * tile.columns * row_groups * t.row.lanes) {}
};

// Memory traffic comes in contiguous runs: the tile's channels of one pixel, or a row of pixels if
// the tile has all channels. Returns the cost of a byte in them.
double find_run_cost(const ConvProblem& problem, const DepthwiseTensors& t, int64_t columns,
                     int64_t channels) {
  const double pixel =
      static_cast<double>(std::min<int64_t>(channels, t.channels) * size_of(problem.dtype));
  const bool whole_pixels = channels >= t.channels;
  const double run = whole_pixels ? pixel * static_cast<double>(columns) : pixel;
  return (std::ceil(run / kSectorBytes) * kSectorBytes + kRunBytes) / run;
}

// What the costs of all tiles share; cells: see channels_last_kernel.cuh.
struct ChannelsLastCosts {
  const DeviceCaps& caps;
  const DepthwiseTensors& t;
  int unit;
  double element_bytes, least_bytes;
  double images, filters;            // filters: of a channel
  double loads, products, per_cell;  // of a cell: loads, products and warp instructions

  ChannelsLastCosts(const ConvProblem& problem, const DeviceCaps& device,
                    const DepthwiseTensors& tensors, int unit_elements)
      : caps(device),
        t(tensors),
        unit(unit_elements),
        element_bytes(static_cast<double>(size_of(problem.dtype))),
        least_bytes(count_bytes(problem)),
        images(static_cast<double>(problem.N)),
        filters(t.multiplier) {
    loads = t.column.taps * (t.row.taps + (kChannelsLastRows - 1.0) * t.row.classes);
    products = static_cast<double>(t.row.taps) * t.column.taps;
    const double convert = element_bytes == 2 ? kDepthwiseConvertIssue : 0;
    per_cell = kDepthwiseCellIssue + kChannelsLastRows * 4 * (products + 1) +
               loads * (1 + convert) + products;
  }
};

double predict_channels_last(const ChannelsLastCosts& costs, const ChannelsLastLayout& layout,
                             double run_cost) {
  // Costs of one block.
  const CudaAxis& row = costs.t.row;
  const ChannelsLastTile& tile = layout.tile;
  const double bytes = costs.element_bytes;
  const double warps = static_cast<double>(ceil_div(layout.cells, 32));
  const double filters = static_cast<double>(layout.shares.filters);
  const double units = static_cast<double>(layout.staged_rows * (tile.channels / costs.unit) *
                                           layout.staged_columns);
  const double results = static_cast<double>(std::min<int64_t>(row.lanes * tile.rows, row.count) *
                                             tile.columns * tile.channels);
  DepthwiseWork work{};
  work.blocks = static_cast<double>(layout.blocks);
  work.issue = units / 32 * kDepthwiseUnitIssue +
               filters * (warps * costs.per_cell +
                          costs.products * tile.channels / 32 * kDepthwiseWeightIssue);
  work.wavefronts = filters * warps * (costs.loads * bytes + costs.products * 4);
  work.busy_warps = warps;
  work.staged_bytes =
      static_cast<double>(layout.staged_rows * layout.line_pitch) * bytes * run_cost;
  work.result_bytes = filters * results * bytes * run_cost;
  work.least_bytes = costs.least_bytes * run_cost;
  work.shared_bytes = layout.shared_bytes;
  work.most_blocks = kChannelsLastBlocks;
  return predict_depthwise_us(work, costs.caps);
}

// Tiles of all numbers of rows. If multiprocessors are never idle and no row is staged twice,
// memory and the instructions take so long.
struct ChannelsLastColumns {
  int64_t columns, channels;
  double run_cost, memory_us, compute_us;
  double bound_us = 0;
  int order = 0;  // of equal predictions, the lowest wins

  // A time that no tile is predicted to beat of which so many blocks are resident.
  double bound(double resident) const {
    const double rate = std::min(1.0, 4 * resident * kDepthwiseWarpIssue / kDepthwiseIssuePerCycle);
    return kBoundFactor *
           (kDepthwiseLaunchUs + std::max(memory_us, compute_us / rate) * (1 + 0.5 / resident));
  }
  bool operator<(const ChannelsLastColumns& other) const {
    return bound_us != other.bound_us ? bound_us < other.bound_us : order < other.order;
  }
};

ChannelsLastColumns make_columns(const ChannelsLastCosts& costs, int64_t columns, int64_t channels,
                                 double run_cost) {
  const DepthwiseTensors& t = costs.t;
  const double sms = std::max(costs.caps.sm_count, 1);
  const double memory =
      costs.least_bytes * run_cost / kDepthwiseBytesPerUs / (sms / kDepthwiseReferenceSms);
  const double tiles = costs.images * static_cast<double>(ceil_div(t.channels, channels) *
                                                          ceil_div(t.column.count, columns));
  const double cells = static_cast<double>(channels / kDepthwiseVector * columns) * t.row.count /
                       kChannelsLastRows * costs.filters;
  const int64_t staged_rows =
      t.row.count * std::min<int64_t>(t.row.source_step, t.row.count_span(1));
  const double units = static_cast<double>(channels / costs.unit * staged_rows) *
                       static_cast<double>(t.column.count_span(columns));
  const double issue = (cells * costs.per_cell + units * kDepthwiseUnitIssue) / 32;
  const double compute = tiles * issue / sms / kDepthwiseIssuePerCycle / kDepthwiseCyclesPerUs;
  return {columns, channels, run_cost, memory, compute};
}

ChannelsLastParams fill_channels_last(const DepthwiseTensors& t, int unit,
                                      const ChannelsLastLayout& layout) {
  const ChannelsLastTile& tile = layout.tile;
  ChannelsLastParams p{};
  p.t = t;
  p.stage.rows = narrow(layout.staged_rows);
  p.stage.line_pitch = narrow(layout.line_pitch);
  p.tile_rows = narrow(tile.rows), p.tile_cols = narrow(tile.columns);
  p.chunk = narrow(tile.channels);
  p.staged_cols = narrow(layout.staged_columns);
  p.filters_per_share = narrow(layout.shares.filters);
  p.weights_offset = narrow(layout.weights_offset);
  p.cells = narrow(layout.cells);
  p.vector_stores = t.multiplier == 1 && fit_unit(4, int64_t{t.channels}, t.target_w, t.target_h,
                                                  t.target_n) == kDepthwiseVector;
  p.by_shares = FastDivmod(layout.shares.shares);
  p.by_chunks = FastDivmod(layout.chunks);
  p.by_column_tiles = FastDivmod(layout.column_tiles);
  p.by_row_tiles = FastDivmod(layout.row_tiles);
  p.by_vectors = FastDivmod(tile.channels / kDepthwiseVector);
  p.by_columns = FastDivmod(tile.columns);
  p.by_row_groups = FastDivmod(layout.row_groups);
  set_channels_last_unit(p, unit);
  return p;
}

}  // namespace

void fit_channels_last(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit) {
  const DepthwiseTensors t = fit.pixel.t;
  const int64_t element = size_of(problem.dtype);
  const int unit = fit_unit(element, int64_t{t.channels}, t.source_w, t.source_h,
                            problem.N > 1 ? t.source_n : 0);
  const int64_t align = std::max(kDepthwiseVector, unit);
  const int64_t most_rows = round_up(ceil_div(t.row.count, t.row.lanes), kChannelsLastRows);
  const int64_t most_channels = std::min<int64_t>(round_up(t.channels, align), 256);
  const ChannelsLastCosts costs(problem, caps, t, unit);
  std::vector<ChannelsLastColumns> sizes;
  for (int64_t cut = 1; cut <= t.column.count; cut = next_size(cut)) {
    const int64_t columns = ceil_div(t.column.count, cut);
    for (int64_t share = 1; share <= most_channels / align; share = next_size(share)) {
      const int64_t channels = round_up(ceil_div(most_channels, share), align);
      const double run_cost = find_run_cost(problem, t, columns, channels);
      ChannelsLastColumns size = make_columns(costs, columns, channels, run_cost);
      size.bound_us = size.bound(kChannelsLastBlocks);
      size.order = static_cast<int>(sizes.size());
      sizes.push_back(size);
    }
  }
  // The sizes with the smallest bounds come first, and end the search of the others.
  std::sort(sizes.begin(), sizes.end());
  std::optional<ChannelsLastLayout> best;
  int best_order = 0;
  fit = {};
  fit.layout = DepthwiseLayout::kPixels;
  for (const ChannelsLastColumns& size : sizes) {
    if (best && size.bound_us >= fit.microseconds) break;
    for (int64_t groups = 1;; groups = next_size(groups)) {
      const int64_t rows = std::min(groups * kChannelsLastRows, most_rows);
      const ChannelsLastStage stage(t, element, {rows, size.columns, size.channels});
      if (stage.shared_bytes > caps.shared_bytes_per_block) break;
      const int64_t fitting = caps.count_blocks_by_shared(stage.shared_bytes);
      const auto resident =
          static_cast<double>(std::clamp<int64_t>(fitting, 1, kChannelsLastBlocks));
      // Larger tiles have no more resident blocks.
      if (best && size.bound(resident) >= fit.microseconds) break;
      const ChannelsLastLayout layout(problem, caps, t, stage);
      if (layout.blocks >= int64_t{1} << 31) break;
      const double us = predict_channels_last(costs, layout, size.run_cost);
      const bool is_tie = best && us == fit.microseconds && size.order < best_order;
      if (!best || us < fit.microseconds || is_tie) {
        best = layout, best_order = size.order, fit.microseconds = us;
      }
      if (rows >= most_rows) break;
    }
  }
  fit.pixel.t = t;
  if (!best) return;
  fit.pixel = fill_channels_last(t, unit, *best);
  fit.blocks = best->blocks, fit.shared_bytes = best->shared_bytes;
}

ChannelsLastParams make_channels_last_params(const ConvProblem& problem, const DepthwiseFit& fit,
                                             const Buffers& buffers) {
  ChannelsLastParams params = fit.pixel;
  set_gather_buffers(params.t, problem, buffers);
  const int unit = fit_unit_to_address(params.t.source, size_of(problem.dtype), params.stage.unit);
  if (unit < params.stage.unit) set_channels_last_unit(params, unit);
  params.vector_stores =
      params.vector_stores && is_aligned(params.t.target, problem.dtype, kDepthwiseVector);
  return params;
}

}  // namespace convx
