#include "engines/cuda_bands/bands_fit.h"

#include <algorithm>
#include <cmath>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "engines/cuda_staging.h"
#include "engines/device_rates.h"
#include "engines/gather_buffers.h"

namespace convx {
namespace {

// Reckoned, not fitted: cycles of a multiprocessor for what a warp does. Hopper's tensor cores do
// 62% of their rate by these instructions, a product of 16 x 8 by 16 in 1.55 cycles.
constexpr double kProductCycles = 1.55;
constexpr double kProductShare = 0.7;  // of the time that they are busy
constexpr double kSharedShare = 0.9;   // the same of shared memory
constexpr double kRowCycles = 10;      // a row of taps: where its lines are
constexpr double kStoreCycles = 3;     // two results of a lane
constexpr double kTapCycles = 6;       // an element of a band, of a lane
constexpr double kBlockCycles = 4000;  // beginning and end
constexpr double kCyclesPerUs = 1750;
constexpr double kBytesPerUs = 3.6e6;
constexpr double kLaunchUs = 4;
constexpr double kReferenceSms = 132;

int64_t count_reach(const CudaAxis& axis) { return int64_t{axis.taps - 1} * axis.offset_step + 1; }

// What a warp does for a row of taps: steps that it reads, and products of a step with a band of 16
// results. Both of steps that lie within the image.
struct RowWork {
  double steps = 0, products = 0;
};

RowWork count_row_work(const BandsFit& fit, int64_t column_tile) {
  const BandsParams& p = fit.params;
  const int64_t first_column = column_tile * fit.columns();
  const int64_t origin = first_column + p.column.offset0 - p.lead;
  const int64_t begin = std::max<int64_t>(-origin, 0) / fit.depth;
  const int64_t end = std::min<int64_t>(
      count_staged_steps(fit.tiles, fit.steps, p.groups),
      ceil_div(std::max<int64_t>(p.source_width - origin, 0), int64_t{fit.depth}));
  RowWork work;
  for (int64_t step = begin; step < end; ++step) {
    ++work.steps;
    for (int tile = 0; tile < fit.tiles; ++tile) {
      work.products += step >= tile && step - tile < fit.steps * p.groups;
    }
  }
  return work;
}

// Of all column tiles on average. Those between the first and the last are taken for alike.
RowWork average_row_work(const BandsFit& fit) {
  const int64_t tiles = fit.params.column_tiles;
  RowWork all;
  for (const int64_t tile : {int64_t{0}, tiles / 2, tiles - 1}) {
    const RowWork work = count_row_work(fit, tile);
    const double share = tile == 0 || tile == tiles - 1 ? 1 : static_cast<double>(tiles - 2);
    all.steps += share * work.steps;
    all.products += share * work.products;
    if (tile == tiles - 1) break;
  }
  all.steps /= static_cast<double>(tiles);
  all.products /= static_cast<double>(tiles);
  return all;
}

// The start that leaves the most steps outside of the image, and of those the one that is copied by
// the largest units.
void choose_lead(const ConvProblem& problem, BandsFit& fit) {
  BandsParams& p = fit.params;
  const int64_t room =
      int64_t{fit.steps} * p.groups * fit.depth - (fit.depth - 1) - count_reach(p.column);
  p.column_tiles = static_cast<int>(ceil_div(int64_t{p.column.count}, fit.columns()));
  int best_lead = 0, best_unit = 0;
  for (int lead = 0; lead <= std::min<int64_t>(room, fit.depth - 1); ++lead) {
    p.lead = lead;
    const RowWork work = average_row_work(fit);
    const int unit = fit_unit(kBandBytes / fit.depth, int64_t{lead} - p.column.offset0,
                              int64_t{p.source_width}, p.source_height > 1 ? p.source_h : 0,
                              problem.C > 1 ? p.source_c : 0, p.images > 1 ? p.source_n : 0);
    if (best_unit == 0 || work.products < fit.products ||
        (work.products == fit.products && unit > best_unit)) {
      best_lead = lead, best_unit = unit;
      fit.products = work.products, fit.steps_read = work.steps;
    }
  }
  p.lead = best_lead;
  p.unit = best_unit;
}

// Whether so many rows of so many images fit.
bool set_tile(BandsFit& fit, const DeviceCaps& caps, int64_t rows, int64_t images) {
  BandsParams& p = fit.params;
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  p.tile_rows = narrow(rows);
  p.tile_images = narrow(images);
  p.row_tiles = narrow(ceil_div(p.row.count, rows));
  p.warps = narrow(ceil_div(rows * images, kBandRows));
  p.span = narrow(
      std::min<int64_t>(p.source_height, (rows - 1) * p.row.source_step + count_reach(p.row)));
  // An odd number of units of 16 bytes: eight lines' units are in different banks.
  const int staged = count_staged_steps(fit.tiles, fit.steps, p.groups);
  p.line_pitch = staged * kBandBytes + 16;
  p.band_elements = kBandFront + fit.steps * p.groups * fit.depth;
  p.bands_offset = p.line_pitch;
  const int64_t element = kBandBytes / fit.depth;
  const int64_t bands = element * p.row.taps * count_band_copies(element) * p.band_elements;
  const int64_t stages = p.bands_offset + round_up(bands, 16);
  const int64_t stage = images * p.span * p.line_pitch;
  fit.shared_bytes = stages + 2 * stage;
  if (fit.shared_bytes > caps.shared_bytes_per_block) return false;
  p.stages_offset = narrow(stages);
  p.stage_bytes = narrow(stage);
  return true;
}

void predict(const ConvProblem& problem, const DeviceCaps& caps, BandsFit& fit) {
  BandsParams& p = fit.params;
  const DeviceRates rates = rates_of(caps);
  const double sms = std::max(caps.sm_count, 1);
  const int64_t tiles = problem.K * p.row_tiles * p.column_tiles;
  const int64_t groups = ceil_div(problem.N, p.tile_images);
  const int64_t resident =
      std::clamp<int64_t>((caps.shared_bytes_per_block + 1024) / (fit.shared_bytes + 1024), 1,
                          std::max(kBandBlocks * kBandMostWarps / p.warps, 1));
  const auto at_once = static_cast<int64_t>(sms) * resident;
  p.shares = static_cast<int>(std::clamp<int64_t>(ceil_div(at_once, tiles), 1, groups));
  fit.blocks = tiles * p.shares;
  const double passes = static_cast<double>(ceil_div(groups, p.shares));
  constexpr double kHalves = kBandRows / 16;
  const double products = fit.depth / 8 * kHalves * fit.products * kProductCycles / kProductShare;
  const double reads =
      ((2 * fit.steps + 1) * p.groups + 4 * kHalves * fit.steps_read) / kSharedShare;
  const double warp = p.row.taps * (std::max(products, reads) + kRowCycles) +
                      kHalves * static_cast<double>(fit.columns()) / 4 * kStoreCycles;
  const auto element = static_cast<double>(size_of(problem.dtype));
  const double bands = p.row.taps * 4.0 / element * p.band_elements / 32 * kTapCycles;
  const double block = passes * warp * p.warps + bands;
  const double rounds = std::ceil(static_cast<double>(fit.blocks) / static_cast<double>(at_once));
  const double cycles = rounds * (static_cast<double>(resident) * block + kBlockCycles);
  fit.microseconds =
      kLaunchUs + std::max(cycles / kCyclesPerUs / rates.tensor,
                           count_bytes(problem) / kBytesPerUs / rates.memory * kReferenceSms / sms);
}

BandsParams make_tensors(const ConvProblem& problem) {
  const GatherView view = make_gather_view(problem);
  const Strides& from = view.source_strides;
  const Strides& to = view.target_strides;
  BandsParams p{};
  p.source_n = from.n, p.source_c = from.c, p.source_h = from.h;
  p.target_n = to.n, p.target_c = to.c, p.target_h = to.h;
  p.weight_k = problem.w_strides.n, p.weight_r = problem.w_strides.h;
  p.weight_s = problem.w_strides.w;
  p.images = static_cast<int>(problem.N);
  p.multiplier = static_cast<int>(problem.filters_per_group());
  p.source_height = static_cast<int>(view.source_h);
  p.source_width = static_cast<int>(view.source_w);
  p.row = make_cuda_axis(make_gather_axis(view.rows[0], false));
  p.column = make_cuda_axis(make_gather_axis(view.columns[0], false));
  return p;
}

BandsFit fit_tile(const ConvProblem& problem, const DeviceCaps& caps, const BandsParams& tensors,
                  const BandsTile& tile) {
  BandsFit fit;
  fit.params = tensors;
  fit.depth = count_band_depth(size_of(problem.dtype));
  fit.tiles = tile.columns / fit.depth;
  const int64_t steps = ceil_div(fit.depth - 1 + count_reach(tensors.column), int64_t{fit.depth});
  fit.steps = round_up(steps, 3) <= round_up(steps, 2) ? 3 : 2;
  fit.params.groups = static_cast<int>(ceil_div(steps, fit.steps));
  choose_lead(problem, fit);
  const int64_t row_tiles = ceil_div(int64_t{tensors.row.count}, int64_t{tile.rows});
  int64_t rows = ceil_div(int64_t{tensors.row.count}, row_tiles);
  int64_t images = std::clamp<int64_t>(tile.rows / rows, 1, problem.N);
  while (!set_tile(fit, caps, rows, images)) {
    int64_t& larger = images > 1 ? images : rows;
    if (larger == 1) return fit;
    larger = ceil_div(larger, 2);
  }
  predict(problem, caps, fit);
  return fit;
}

}  // namespace

BandsFit fit_bands(const ConvProblem& problem, const DeviceCaps& caps,
                   std::span<const BandsTile> tiles) {
  const BandsParams tensors = make_tensors(problem);
  BandsFit best;
  for (const BandsTile& tile : tiles) {
    const BandsFit fit = fit_tile(problem, caps, tensors, tile);
    if (fit.blocks == 0) continue;
    if (best.blocks == 0 || fit.microseconds < best.microseconds) best = fit;
  }
  return best;
}

BandsParams make_bands_params(const ConvProblem& problem, const BandsFit& fit,
                              const Buffers& buffers) {
  BandsParams p = fit.params;
  set_gather_buffers(p, problem, buffers);
  p.unit = fit_unit_to_address(p.source, size_of(problem.dtype), p.unit);
  const auto is_even = [](int64_t extent, int64_t stride) {
    return extent <= 1 || stride % 2 == 0;
  };
  p.pairs = p.column.count % 2 == 0 && is_even(p.row.count, p.target_h) &&
            is_even(problem.K, p.target_c) && is_even(problem.N, p.target_n) &&
            is_aligned(p.target, problem.dtype, 2);
  return p;
}

}  // namespace convx
