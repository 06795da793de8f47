#include <algorithm>

#include "core/arithmetic.h"
#include "engines/cuda/depthwise/depthwise_costs.h"
#include "engines/cuda/depthwise/depthwise_fit.h"
#include "engines/cuda/depthwise/depthwise_units.h"

namespace convx {
namespace {

constexpr double kSectorBytes = 32;
constexpr double kRunBytes = 16;  // overhead of a contiguous run, in bytes

struct ChannelsLastTile {
  int64_t rows, columns, channels;  // rows per lane
};

// Sets the parameters of a tile and predicts its time. Returns false if the tile does not fit.
bool fit_tile(const ConvProblem& problem, const DeviceCaps& caps, const DepthwiseTensors& t,
              int unit, const ChannelsLastTile& tile, DepthwiseFit& fit) {
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  const CudaAxis& row = t.row;
  const CudaAxis& column = t.column;
  const int64_t element = size_of(problem.dtype);
  const int64_t staged_rows = row.count_span(row.lanes * tile.rows);
  const int64_t staged_columns = column.count_span(tile.columns);
  const int64_t line_pitch = staged_columns * tile.channels;
  const int64_t taps = int64_t{row.taps} * column.taps;
  const int64_t weights_offset = round_up(staged_rows * line_pitch * element, 16);
  const int64_t shared_bytes = weights_offset + taps * tile.channels * 4;
  if (shared_bytes > caps.shared_bytes_per_block) return false;
  const int64_t chunks = ceil_div(t.channels, tile.channels);
  const int64_t column_tiles = ceil_div(column.count, tile.columns);
  const int64_t row_tiles = ceil_div(row.count, row.lanes * tile.rows);
  const int64_t tiles = problem.N * chunks * column_tiles * row_tiles;
  const int64_t parts = count_filter_parts(t.multiplier, tiles, caps.sm_count);
  const int64_t filters_per_part = ceil_div(t.multiplier, parts);
  const int64_t blocks = tiles * ceil_div(t.multiplier, filters_per_part);
  if (blocks >= int64_t{1} << 31) return false;

  ChannelsLastParams& p = fit.pixel;
  p.t = t;
  p.stage.rows = narrow(staged_rows);
  p.stage.line_pitch = narrow(line_pitch);
  p.tile_rows = narrow(tile.rows), p.tile_cols = narrow(tile.columns);
  p.chunk = narrow(tile.channels);
  p.staged_cols = narrow(staged_columns);
  p.filters_per_part = narrow(filters_per_part);
  p.weights_offset = narrow(weights_offset);
  const int64_t vectors = tile.channels / kDepthwiseVector;
  const int64_t row_groups = tile.rows / kChannelsLastRows;
  p.cells = narrow(vectors * tile.columns * row_groups * row.lanes);
  p.vector_stores = t.multiplier == 1 && fit_unit(4, int64_t{t.channels}, t.target_w, t.target_h,
                                                  t.target_n) == kDepthwiseVector;
  p.by_parts = FastDivmod(ceil_div(t.multiplier, filters_per_part));
  p.by_chunks = FastDivmod(chunks);
  p.by_column_tiles = FastDivmod(column_tiles), p.by_row_tiles = FastDivmod(row_tiles);
  p.by_vectors = FastDivmod(vectors), p.by_columns = FastDivmod(tile.columns);
  p.by_row_groups = FastDivmod(row_groups);
  set_channels_last_unit(p, unit);

  // Costs of one block; see channels_last_kernel.cuh.
  const double loads = column.taps * (row.taps + (kChannelsLastRows - 1.0) * row.classes);
  const double products = static_cast<double>(taps);
  const double convert = element == 2 ? kDepthwiseConvertIssue : 0;
  const double per_cell = kDepthwiseCellIssue + kChannelsLastRows * 4 * (products + 1) +
                          loads * (1 + convert) + products;
  const double warps = static_cast<double>(ceil_div(p.cells, 32));
  const double filters = static_cast<double>(filters_per_part);
  const double bytes = static_cast<double>(element);
  const double units = static_cast<double>(staged_rows) * p.stage.units;
  // Memory traffic comes in contiguous runs: the tile's channels of one pixel, or a row of pixels
  // if the tile has all channels.
  const bool whole_pixels = tile.channels >= t.channels;
  const double pixel = static_cast<double>(std::min<int64_t>(tile.channels, t.channels)) * bytes;
  const double run = whole_pixels ? pixel * static_cast<double>(tile.columns) : pixel;
  const double run_cost = (std::ceil(run / kSectorBytes) * kSectorBytes + kRunBytes) / run;
  const double results = static_cast<double>(std::min<int64_t>(row.lanes * tile.rows, row.count) *
                                             tile.columns * tile.channels);
  DepthwiseWork work{};
  work.blocks = static_cast<double>(blocks);
  work.issue = units / 32 * kDepthwiseUnitIssue +
               filters * (warps * per_cell + products * tile.channels / 32 * kDepthwiseWeightIssue);
  work.wavefronts = filters * warps * (loads * bytes + products * 4);
  work.busy_warps = warps;
  work.staged_bytes = static_cast<double>(staged_rows * line_pitch) * bytes * run_cost;
  work.result_bytes = filters * results * bytes * run_cost;
  work.least_bytes = count_bytes(problem) * run_cost;
  work.shared_bytes = shared_bytes;
  work.most_blocks = 5;
  fit.blocks = blocks;
  fit.shared_bytes = shared_bytes;
  fit.microseconds = predict_depthwise_us(work, caps);
  return true;
}

}  // namespace

void set_channels_last_unit(ChannelsLastParams& p, int unit) {
  const int64_t units = p.chunk / unit;
  set_stage_units(p.stage, units * p.staged_cols, unit, kDepthwiseThreads);
  p.by_pixel_units = FastDivmod(units);
}

void fit_channels_last(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit) {
  const DepthwiseTensors t = fit.pixel.t;
  const int unit = fit_unit(size_of(problem.dtype), int64_t{t.channels}, t.source_w, t.source_h,
                            problem.N > 1 ? t.source_n : 0);
  const int64_t align = std::max(kDepthwiseVector, unit);
  const int64_t most_rows = round_up(ceil_div(t.row.count, t.row.lanes), kChannelsLastRows);
  const int64_t most_channels = std::min<int64_t>(round_up(t.channels, align), 256);
  DepthwiseFit best;
  for (int64_t cut = 1; cut <= t.column.count; cut = next_size(cut)) {
    const int64_t columns = ceil_div(t.column.count, cut);
    for (int64_t share = 1; share <= most_channels / align; share = next_size(share)) {
      const int64_t channels = round_up(ceil_div(most_channels, share), align);
      for (int64_t groups = 1;; groups = next_size(groups)) {
        const int64_t rows = std::min(groups * kChannelsLastRows, most_rows);
        DepthwiseFit candidate;
        const bool fits = fit_tile(problem, caps, t, unit, {rows, columns, channels}, candidate);
        if (fits && (best.blocks == 0 || candidate.microseconds < best.microseconds)) {
          best = candidate;
        }
        if (!fits || rows >= most_rows) break;
      }
    }
  }
  best.pixel.t = t;
  fit = best;
  fit.layout = DepthwiseLayout::kPixels;
}

}  // namespace convx
