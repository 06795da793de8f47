// Plans of cuda_bands: the fastest tile by a cost model, and what the engine refuses.
#include "engines/cuda/depthwise/bands_geometry.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "core/text.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/depthwise/depthwise_geometry.h"
#include "planning/device_rates.h"
#include "planning/refusals.h"
#include "planning/separate_pass.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

// Fitted to an H200 (docs/engines/cuda_bands.md). Busy cycles of a multiprocessor, per unit of a
// warp's work:
constexpr double kMmaCycles = 0.87;    // one MMA of 16 x 8 outputs, 16 columns deep (TF32: 8)
constexpr double kRowCycles = 8.8;     // one row of taps
constexpr double kStoreCycles = 8.3;   // storing two outputs of every lane
constexpr double kUnitCycles = 0.27;   // copying one unit
constexpr double kRoundCycles = 0.09;  // rounding one element to TF32
constexpr double kClearCycles = 0.5;   // writing 16 bytes of zeros
// Latency in cycles that a block adds even if it is alone on its multiprocessor:
constexpr double kPassCycles = 2100;   // one pass over the staged images
constexpr double kMmaLatency = 5.5;    // one MMA of a warp
constexpr double kGroupLatency = 277;  // one row of taps, or one group of its steps
constexpr double kCyclesPerUs = 1750;
// Source bytes per microsecond, and the cost in bytes of each sector that 8 stored outputs touch.
constexpr double kBytesPerUs = 3.4e6;
constexpr double kSectorBytes = 41;
constexpr double kLaunchUs = 4;
constexpr double kReferenceSms = 132;
constexpr int64_t kMostShares = 16;  // upper bound of the search

// Counts the (step, band) pairs that a warp multiplies for one row of taps. Each pair takes
// depth / 8 MMAs for every 16 rows. Steps outside the image are skipped and do not count.
double count_row_products(const BandsFit& fit, int64_t column_tile) {
  const BandsParams& p = fit.params;
  const int64_t origin = column_tile * fit.columns() + p.column.offset0 - p.lead;
  const int64_t begin = std::max<int64_t>(-origin, 0) / fit.depth;
  const int64_t end = std::min<int64_t>(
      count_staged_steps(fit.tiles, fit.steps, p.groups),
      ceil_div(std::max<int64_t>(p.source_width - origin, 0), int64_t{fit.depth}));
  double products = 0;
  for (int64_t step = begin; step < end; ++step) {
    for (int tile = 0; tile < fit.tiles; ++tile) {
      products += step >= tile && step - tile < fit.steps * p.groups;
    }
  }
  return products;
}

// The average over all column tiles. Tiles between the first and the last are assumed to be alike.
double average_row_products(const BandsFit& fit) {
  const int64_t tiles = fit.params.column_tiles;
  double products = count_row_products(fit, 0);
  if (tiles > 2) products += static_cast<double>(tiles - 2) * count_row_products(fit, tiles / 2);
  if (tiles > 1) products += count_row_products(fit, tiles - 1);
  return products / static_cast<double>(tiles);
}

// Picks the lead that leaves the most steps outside the image. Among equals it picks the one that
// allows the largest copy unit.
void choose_lead(const ConvProblem& problem, BandsFit& fit) {
  BandsParams& p = fit.params;
  const int64_t room =
      int64_t{fit.steps} * p.groups * fit.depth - (fit.depth - 1) - p.column.count_span(1);
  p.column_tiles = static_cast<int>(ceil_div(int64_t{p.column.count}, fit.columns()));
  int best_lead = 0, best_unit = 0;
  for (int lead = 0; lead <= std::min<int64_t>(room, fit.depth - 1); ++lead) {
    p.lead = lead;
    const double products = average_row_products(fit);
    const int unit = fit_unit(kBandBytes / fit.depth, int64_t{lead} - p.column.offset0,
                              int64_t{p.source_width}, p.source_height > 1 ? p.source_h : 0,
                              problem.C > 1 ? p.source_c : 0, p.images > 1 ? p.source_n : 0);
    if (best_unit == 0 || products < fit.products ||
        (products == fit.products && unit > best_unit)) {
      best_lead = lead, best_unit = unit;
      fit.products = products;
    }
  }
  p.lead = best_lead;
  p.unit = best_unit;
}

// Returns whether a tile of `rows` rows of `images` images fits in shared memory.
bool set_tile(BandsFit& fit, const DeviceCaps& caps, int64_t rows, int64_t images) {
  BandsParams& p = fit.params;
  p.tile_rows = narrow(rows);
  p.tile_images = narrow(images);
  p.row_tiles = narrow(ceil_div(p.row.count, rows));
  p.warps = narrow(ceil_div(rows * images, kBandRows));
  p.span = narrow(std::min<int64_t>(p.source_height, p.row.count_span(rows)));
  // The pitch is an odd multiple of 16 bytes, so that ldmatrix reads eight lines from different
  // banks.
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

// Blocks that one multiprocessor holds at once. Shared memory limits them, and so do the 16384
// registers of each of its four sub-partitions, among which a block's warps are distributed evenly.
int64_t count_resident_blocks(const DeviceCaps& caps, const BandsFit& fit) {
  const int64_t warps_of_part = 16384 / 32 / count_band_registers(static_cast<int>(fit.columns()));
  return std::clamp<int64_t>(caps.count_blocks_by_shared(fit.shared_bytes), 1,
                             warps_of_part / ceil_div(fit.params.warps, 4));
}

struct BlockCycles {
  double busy = 0;     // cycles that keep the multiprocessor busy
  double waiting = 0;  // latency on top of that, during which other blocks can run
};

// The cost of a block that computes its images in `passes` passes.
BlockCycles count_block_cycles(const ConvProblem& problem, const BandsFit& fit, int64_t passes) {
  const BandsParams& p = fit.params;
  constexpr double kRowTiles = kBandRows / 16;
  const int64_t staged = count_staged_steps(fit.tiles, fit.steps, p.groups) * fit.depth;
  const auto elements =
      static_cast<double>(p.tile_images * p.span * std::min<int64_t>(staged, p.source_width));
  const double products =
      p.row.taps * fit.depth / 8 * kRowTiles * fit.products;  // MMAs of one warp
  const double warp = products * kMmaCycles + p.row.taps * kRowCycles +
                      kRowTiles * static_cast<double>(fit.columns()) / 4 * kStoreCycles;
  const double copies = elements / p.unit * kUnitCycles +
                        (problem.dtype == DType::kFloat32 ? elements * kRoundCycles : 0);
  const auto rounds = static_cast<double>(passes);
  // Warps are distributed over four sub-partitions. The one with the most warps ends last.
  const auto warps = static_cast<double>(round_up(int64_t{p.warps}, 4));
  return {.busy = rounds * (warps * warp + copies) + 2 * p.stage_bytes / 16 * kClearCycles,
          .waiting = rounds * (kPassCycles + products * kMmaLatency +
                               double(p.row.taps) * p.groups * kGroupLatency)};
}

// Full waves of `resident` blocks per multiprocessor, then one wave with the remaining blocks.
double count_cycles(int64_t blocks, int64_t sms, int64_t resident, const BlockCycles& block) {
  const int64_t rounds = blocks / (sms * resident);
  const int64_t rest = ceil_div(blocks - rounds * sms * resident, sms);
  const auto count_round = [&](int64_t at_once) {
    return static_cast<double>(at_once) * block.busy + block.waiting;
  };
  return static_cast<double>(rounds) * count_round(resident) + (rest > 0 ? count_round(rest) : 0);
}

// The memory traffic of the whole problem in source bytes. Eight outputs of an unaligned row touch
// two sectors. If a block has whole rows, neighbouring stores often share a sector.
double count_memory_bytes(const ConvProblem& problem, const BandsFit& fit) {
  const BandsParams& p = fit.params;
  const auto rows = static_cast<double>(problem.N * problem.K * p.row.count);
  const auto pieces = static_cast<double>(ceil_div(int64_t{p.column.count}, 8));
  const double sectors = p.target_h % 8 == 0 ? 1 : p.column_tiles == 1 ? 1.5 : 2;
  const auto source = static_cast<double>(problem.N * problem.C * p.source_height * p.source_width *
                                          size_of(problem.dtype));
  return source + rows * pieces * sectors * kSectorBytes;
}

// Also sets p.shares, the number of blocks among which the images of a tile are divided.
void predict(const ConvProblem& problem, const DeviceCaps& caps, BandsFit& fit) {
  BandsParams& p = fit.params;
  const int64_t sms = std::max(caps.sm_count, 1);
  const int64_t tiles = problem.K * p.row_tiles * p.column_tiles;
  const int64_t groups = ceil_div(problem.N, int64_t{p.tile_images});
  const int64_t resident = count_resident_blocks(caps, fit);
  double best = 0;
  for (int64_t shares = 1; shares <= std::min(groups, kMostShares); ++shares) {
    const BlockCycles block = count_block_cycles(problem, fit, ceil_div(groups, shares));
    const double cycles = count_cycles(tiles * shares, sms, resident, block);
    if (shares > 1 && cycles >= best) continue;
    best = cycles;
    p.shares = static_cast<int>(shares);
  }
  fit.blocks = tiles * p.shares;
  const DeviceRates rates = rates_of(caps);
  fit.microseconds =
      kLaunchUs + std::max(best / kCyclesPerUs / rates.tensor,
                           count_memory_bytes(problem, fit) / kBytesPerUs / rates.memory *
                               kReferenceSms / static_cast<double>(sms));
}

BandsParams make_tensors(const ConvProblem& problem) {
  const GatherView view = make_gather_view(problem);
  BandsParams p{};
  set_depthwise_tensors(problem, view, p);
  p.images = narrow(problem.N), p.multiplier = narrow(problem.filters_per_group());
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
  const int64_t steps = ceil_div(fit.depth - 1 + tensors.column.count_span(1), int64_t{fit.depth});
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

constexpr int64_t kMostReach = 240;  // columns from a row's first tap to its last

// All but whether a tile fits.
std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass == Pass::kWeightGrad) return "it computes no weight gradient";
  if (p.groups != p.C) return "it needs as many groups as channels";
  if (std::string refusal = refuse_split_math(p); !refusal.empty()) return refusal;
  if (p.pass == Pass::kInputGrad && (p.stride != Hw{1, 1} || p.K != p.C)) {
    return "it computes the input gradient for stride 1 and one filter per channel only";
  }
  if (p.stride.w != 1) return "its columns slide by one";
  if (std::string refusal = refuse_before_sm_80(caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (p.N == 0) return "the batch is empty";
  if ((p.S - 1) * p.dilation.w + 1 > kMostReach)
    return "taps of a row are more than 240 columns apart";
  const GatherTensors tensors = make_gather_tensors(p);
  if ((tensors.source_w > 1 && tensors.source_strides.w != 1) ||
      (tensors.target_w > 1 && tensors.target_strides.w != 1)) {
    return "columns are not neighbours in the memory of both input and output";
  }
  return "";
}

Plan make_plan(BandsFit fit) {
  const BandsParams& p = fit.params;
  Plan plan;
  plan.engine = EngineId::kCudaBands;
  plan.tile = {int64_t{p.tile_rows} * p.tile_images, fit.columns(),
               int64_t{fit.steps} * p.groups * fit.depth};
  plan.predicted_us = fit.microseconds;
  plan.geometry = make_geometry(std::move(fit));
  return plan;
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  BandsFit fit = fit_bands(problem, caps);
  if (fit.blocks == 0) return Refusal{"no tile fits in shared memory"};
  if (fit.blocks >= int64_t{1} << 31) return Refusal{"there are more than 2^31 tiles"};
  return make_plan(std::move(fit));
}

std::optional<Plan> plan_tile(const ConvProblem& problem, const DeviceCaps& caps,
                              const BandsTile& tile) {
  BandsFit fit = fit_bands(problem, caps, {&tile, 1});
  if (fit.blocks == 0) return std::nullopt;
  return make_plan(std::move(fit));
}

std::optional<Plan> plan_variant(const ConvProblem& problem, const DeviceCaps& caps,
                                 std::string_view variant) {
  for (const BandsTile& tile : kBandTiles) {
    if (variant == tile.name) return plan_tile(problem, caps, tile);
  }
  return std::nullopt;
}

// Tiles that differ from the planned one and from each other.
std::vector<const char*> variants(const ConvProblem& problem, const DeviceCaps& caps) {
  std::vector<Plan> plans = {make_plan(fit_bands(problem, caps))};
  std::vector<const char*> names;
  for (const BandsTile& tile : kBandTiles) {
    const std::optional<Plan> other = plan_tile(problem, caps, tile);
    const auto is_same = [&](const Plan& p) {
      return p.tile.m == other->tile.m && p.tile.n == other->tile.n;
    };
    if (!other || std::any_of(plans.begin(), plans.end(), is_same)) continue;
    plans.push_back(*other);
    names.push_back(tile.name);
  }
  return names;
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

void BandsFit::describe(Text& out) const {
  out << "tile " << params.tile_images << "x" << params.tile_rows << "x" << columns()
      << " pixels (images x rows x columns), bands of " << params.groups << " x " << steps
      << " steps of " << depth << " columns, " << count_text(params.warps, "warp");
}

Engine cuda_bands_engine() {
  return {.id = EngineId::kCudaBands,
          .name = "cuda_bands",
          .consider = consider,
          .separate_pass_us = pass_us_unless_relu,
          .variants = variants,
          .plan_variant = plan_variant};
}

}  // namespace convx
