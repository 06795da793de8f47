// Plans of cuda_diagonal: the fastest tile by a cost model, and what the engine refuses.
#include "engines/cuda/grouped/diagonal_geometry.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "core/arithmetic.h"
#include "core/engine.h"
#include "core/gather_view.h"
#include "core/text.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/grouped/grouped_planning.h"
#include "planning/device_rates.h"
#include "planning/gather_axis.h"
#include "planning/refusals.h"
#include "planning/separate_pass.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

// Fitted to an H200 (docs/engines/cuda_diagonal.md). Busy cycles of a multiprocessor for:
constexpr double kTapCycles = 13.7;  // one tap of a source chunk, 64 pixels and 16 filters
constexpr double kFewFiltersTapCycles = 10.6;  // the same with 8 filters, in TF32
constexpr double kStoreCycles = 54;            // storing one chunk of 64 pixels
// Measured when a thread located every unit by itself; by rows it takes fewer instructions.
constexpr double kUnitCycles = 0.46;   // copying one unit
constexpr double kRoundCycles = 0.15;  // rounding one unit to TF32
// Latency in cycles that a block adds even if it is alone on its multiprocessor:
constexpr double kTileLatency = 1960;   // one tile
constexpr double kStoreLatency = 1130;  // 64 pixels of a warp
constexpr double kTapLatency = 82;      // one tap
constexpr double kBlockLatency = 790;   // start of the block
// Counted in instructions, not measured: staging weights in batches of loads, and warps of 16
// pixels, which read as many words of weights as warps of 64.
constexpr double kWordCycles = 0.2;      // busy cycles for staging one word of weights
constexpr double kWordLatency = 800;     // a thread's batch of weights
constexpr double kFewPixelsShare = 0.4;  // busy cycles of a job, relative to one of 64 pixels
constexpr double kFewTapLatency = 50;
constexpr double kFewStoreLatency = 400;
constexpr double kCyclesPerUs = 1750;
constexpr double kBytesPerUs = 3.2e6;
constexpr double kLaunchUs = 4;
constexpr double kReferenceSms = 132;

int64_t most_pixels() { return std::end(kDiagonalTileSizes)[-1].most; }

// Rows keep the order of the source; columns are sorted by residue (diagonal_geometry.h).
DiagonalAxis make_axis(const std::vector<AxisPhase>& phases, bool sort_residues) {
  DiagonalAxis axis{};
  axis.phases = narrow(std::ssize(phases));
  int64_t first = 0, last = 0, most_taps = 0;
  for (const AxisPhase& phase : phases) {
    for (const AxisTap& tap : phase.taps) {
      first = most_taps == 0 ? tap.offset : std::min(first, tap.offset);
      last = most_taps == 0 ? tap.offset : std::max(last, tap.offset);
      most_taps = std::max(most_taps, std::ssize(phase.taps));
    }
  }
  axis.source_step = narrow(phases[0].source_step);
  axis.target_step = narrow(phases[0].target_step);
  axis.origin = narrow(first);
  axis.span = narrow(last - first + 1);
  axis.count = narrow(phases[0].count);  // residue 0 has the most points
  // With a single tap nothing else is read, so that only every source_step-th position is staged.
  const bool skips = axis.span == 1;
  axis.residues = sort_residues && !skips ? axis.source_step : 1;
  axis.gap = sort_residues || skips ? axis.source_step : 1;
  axis.lattice_step = axis.source_step / axis.gap;
  for (int i = 0; i < axis.phases; ++i) {
    const GatherAxis from = make_gather_axis(phases[i], false);
    const int64_t start = from.taps == 0 ? 0 : from.offset0 - first;
    axis.phase[i] = {.count = narrow(from.count),
                     .target_start = narrow(from.target_start),
                     .taps = narrow(from.taps),
                     .tap0 = narrow(from.tap0),
                     .tap_step = narrow(from.tap_step),
                     .first = narrow(start),
                     .step = narrow(from.offset_step / axis.gap),
                     .residue_step = narrow(from.offset_step % axis.gap)};
  }
  return axis;
}

DiagonalParams make_tensors(const ConvProblem& problem) {
  const GatherView view = make_gather_view(problem);
  DiagonalParams p{};
  set_grouped_tensors(problem, view, p);
  p.source_w = narrow(view.source_strides.w), p.target_w = narrow(view.target_strides.w);
  p.weight_r = problem.w_strides.h, p.weight_s = problem.w_strides.w;
  p.images = narrow(problem.N);
  p.sources = narrow(problem.groups * view.source_channels);
  p.targets = narrow(problem.groups * view.target_channels);
  p.kernel_height = narrow(problem.R), p.kernel_width = narrow(problem.S);
  p.row = make_axis(view.rows, false);
  p.column = make_axis(view.columns, true);
  p.unit = fit_unit(size_of(problem.dtype), int64_t{p.sources}, p.images > 1 ? p.source_n : 0,
                    p.source_height > 1 ? p.source_h : 0, p.source_width > 1 ? p.source_w : 0);
  return p;
}

// Gives each block `chunks` filter chunks, a power of two, of `pieces` times 8 filters.
void set_chunks(const ConvProblem& problem, int pieces, int64_t chunks, DiagonalFit& fit) {
  DiagonalParams& p = fit.params;
  const int64_t channels = count_chunk_channels(size_of(problem.dtype));
  const int64_t filters = count_chunk_filters(pieces);
  const int64_t all = ceil_div(int64_t{p.targets}, filters);
  // Source chunks that `count` filter chunks from the first on read.
  const auto count_sources = [&](int64_t first, int64_t count) {
    const int64_t last = std::min<int64_t>((first + count) * filters, p.targets) - 1;
    const int64_t begin = first * filters / p.target_channels * p.source_channels / channels;
    const int64_t end = ceil_div((last / p.target_channels + 1) * p.source_channels, channels);
    return narrow(end - begin);
  };
  p.chunks = narrow(chunks);
  p.sets = narrow(ceil_div(all, chunks));
  p.depth = 0, p.source_chunks = 0;
  fit.kernel.pieces = pieces;
  int64_t first = 0, sum = 0;
  for (; first < all; ++first) {
    // Where groups and chunks begin together again, everything repeats.
    const int64_t filter = first * filters;
    if (first > 0 && first % chunks == 0 && filter % p.target_channels == 0 &&
        filter / p.target_channels * p.source_channels % channels == 0) {
      break;
    }
    const int depth = count_sources(first, 1);
    sum += depth;
    p.depth = std::max(p.depth, depth);
    if (first % chunks == 0) {
      p.source_chunks = std::max(p.source_chunks, count_sources(first, chunks));
    }
  }
  fit.mean_depth = static_cast<double>(sum) / static_cast<double>(first);
  // The pitch is an odd multiple of 16 bytes, so that ldmatrix reads eight neighbouring pixels from
  // different banks.
  p.pixel_bytes = p.source_chunks * kChunkBytes + 16;
}

int64_t count_words(const ConvProblem& problem, const DiagonalFit& fit) {
  return problem.taps() * fit.params.depth * fit.params.chunks * 32 *
         count_chunk_words(fit.kernel.pieces);
}

// Returns whether a tile of rows x columns lattice points fits.
bool set_tile(const ConvProblem& problem, const DeviceCaps& caps, int64_t rows, int64_t columns,
              DiagonalFit& fit) {
  DiagonalParams& p = fit.params;
  p.tile_rows = narrow(rows), p.tile_columns = narrow(columns);
  p.row_tiles = narrow(ceil_div(int64_t{p.row.count}, rows));
  p.column_tiles = narrow(ceil_div(int64_t{p.column.count}, columns));
  const auto count_positions = [](const DiagonalAxis& axis, int64_t points) {
    return ceil_div((points - 1) * axis.source_step + axis.span, int64_t{axis.gap});
  };
  const int64_t staged_rows = count_positions(p.row, rows);
  const int64_t residue_columns = count_positions(p.column, columns);
  const int64_t staged_columns = residue_columns * p.column.residues;
  if (staged_rows > caps.shared_bytes_per_block || staged_columns > caps.shared_bytes_per_block) {
    return false;
  }
  // The kernel computes offsets within a tile in 32 bits.
  const auto is_far = [&](int64_t down, int64_t h, int64_t right, int64_t w) {
    return down * h + right * w + problem.C + problem.K >= int64_t{1} << 31;
  };
  if (is_far(staged_rows * p.row.gap, p.source_h, staged_columns * p.column.gap, p.source_w) ||
      is_far(rows * p.row.target_step, p.target_h, columns * p.column.target_step, p.target_w)) {
    return false;
  }
  const int64_t weights = 4 * count_words(problem, fit);
  const int64_t stage = staged_rows * staged_columns * p.pixel_bytes;
  const int64_t bias =
      weights + round_up(problem.taps() * p.depth * static_cast<int64_t>(sizeof(DiagonalStep)), 16);
  const int64_t pixels = bias + int64_t{p.chunks} * count_chunk_filters(fit.kernel.pieces) *
                                    static_cast<int64_t>(sizeof(float));
  fit.shared_bytes = pixels + 2 * stage;
  if (fit.shared_bytes > caps.shared_bytes_per_block) return false;
  p.steps_offset = narrow(weights), p.bias_offset = narrow(bias), p.pixels_offset = narrow(pixels);
  p.stage_bytes = narrow(stage);
  p.staged_rows = narrow(staged_rows), p.staged_columns = narrow(staged_columns);
  p.residue_columns = narrow(residue_columns);
  return true;
}

double predict_memory_us(const ConvProblem& problem, const DeviceCaps& caps) {
  const double sms = std::max(caps.sm_count, 1);
  return count_bytes(problem) / kBytesPerUs / rates_of(caps).memory * kReferenceSms / sms;
}

// Also sets fit.blocks.
void predict(const ConvProblem& problem, const DeviceCaps& caps, double memory_us,
             DiagonalFit& fit) {
  const DiagonalParams& p = fit.params;
  const double sms = std::max(caps.sm_count, 1);
  const int64_t resident =
      std::clamp<int64_t>(caps.count_blocks_by_shared(fit.shared_bytes), 1, kDiagonalBlocks);
  const int64_t tiles = problem.N * p.row_tiles * p.column_tiles;
  const int64_t at_once = static_cast<int64_t>(sms) * resident;
  const int64_t shares = std::clamp<int64_t>(at_once / p.sets, 1, tiles);
  fit.blocks = shares * p.sets;
  const bool is_tf32 = problem.dtype == DType::kFloat32;
  const bool is_few = fit.kernel.warp_pixels == kDiagonalFewPixels;
  const int64_t phases = int64_t{p.row.phases} * p.column.phases;
  const int64_t jobs =  // of a filter chunk
      phases * ceil_div(int64_t{p.tile_rows} * p.tile_columns, int64_t{fit.kernel.warp_pixels});
  const int64_t warp_rounds = ceil_div(jobs, int64_t{kDiagonalWarps / p.chunks});
  // Each tap belongs to one phase. Zeros of other groups are multiplied too.
  const double taps = static_cast<double>(problem.taps()) / static_cast<double>(phases);
  const double units = static_cast<double>(p.staged_rows) * p.staged_columns * p.source_chunks *
                       count_chunk_channels(size_of(problem.dtype)) / p.unit;
  const double busy =
      static_cast<double>(jobs * p.chunks) *
          (taps * fit.mean_depth * (fit.kernel.pieces == 1 ? kFewFiltersTapCycles : kTapCycles) +
           kStoreCycles) *
          (is_few ? kFewPixelsShare : 1) +
      units * (kUnitCycles + (is_tf32 ? kRoundCycles : 0));
  const double waiting =
      kTileLatency +
      static_cast<double>(warp_rounds) * (taps * p.depth * (is_few ? kFewTapLatency : kTapLatency) +
                                          (is_few ? kFewStoreLatency : kStoreLatency));
  const double of_sm = std::ceil(static_cast<double>(fit.blocks) / sms);
  const auto rounds = static_cast<double>(ceil_div(tiles, shares));
  const auto words = static_cast<double>(count_words(problem, fit));
  const double batches =
      p.depth * std::ceil(words / p.depth / (kDiagonalThreads * kDiagonalTapBatch));
  const double cycles = rounds * (of_sm * busy + waiting) + of_sm * words * kWordCycles +
                        batches * kWordLatency + kBlockLatency;
  fit.microseconds = kLaunchUs + std::max(cycles / kCyclesPerUs / rates_of(caps).clock, memory_us);
}

// Calls visit with each tile that fits and has more than `over` and at most `most` pixels, until it
// returns false.
template <typename Visit>
void visit_tiles(const ConvProblem& problem, const DeviceCaps& caps, int64_t over, int64_t most,
                 const Visit& visit) {
  DiagonalFit fit{.params = make_tensors(problem)};
  const DiagonalParams& p = fit.params;
  const int64_t phases = int64_t{p.row.phases} * p.column.phases;
  const auto visit_chunks = [&](int pieces, int64_t chunks) {
    set_chunks(problem, pieces, chunks, fit);
    for (int64_t cut = 1;; cut = next_size(cut)) {
      const int64_t columns = ceil_div(int64_t{p.column.count}, cut);
      for (int64_t rows = 1;; rows = next_size(rows)) {
        rows = std::min<int64_t>(rows, p.row.count);
        if (rows * columns * phases > most) break;
        if (!set_tile(problem, caps, rows, columns, fit)) break;
        if (rows * columns * phases > over && !visit(fit)) return false;
        if (rows == p.row.count) break;
      }
      if (columns <= 8) break;
    }
    return true;
  };
  // In TF32, chunks of 16 filters would read channels of more groups, unless they divide a group.
  const bool is_tf32 = problem.dtype == DType::kFloat32;
  const int pieces = is_tf32 && p.target_channels % 16 != 0 ? 1 : 2;
  const int64_t all = ceil_div(int64_t{p.targets}, int64_t{count_chunk_filters(pieces)});
  for (int64_t chunks = 1; chunks <= kDiagonalMostChunks; chunks *= 2) {
    if (chunks > 1 && chunks / 2 >= all) break;
    if (!visit_chunks(pieces, chunks)) return;
  }
}

// Returns the fastest tile with more than `over` and at most `most` pixels.
DiagonalFit fit_tiles(const ConvProblem& problem, const DeviceCaps& caps, int64_t over,
                      int64_t most) {
  DiagonalFit best;
  const double memory_us = predict_memory_us(problem, caps);
  visit_tiles(problem, caps, over, most, [&](DiagonalFit& fit) {
    for (const int pixels : {kDiagonalManyPixels, kDiagonalFewPixels}) {
      fit.kernel.warp_pixels = pixels;
      predict(problem, caps, memory_us, fit);
      if (best.blocks == 0 || fit.microseconds < best.microseconds) best = fit;
    }
    return true;
  });
  DiagonalParams& p = best.params;
  if (best.blocks > 0) {
    p.by_tile_columns = FastDivmod(p.tile_columns);
    p.by_residue_columns = FastDivmod(p.residue_columns);
    p.by_kernel_width = FastDivmod(p.kernel_width);
  }
  return best;
}

// All but whether a tile fits.
std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass == Pass::kWeightGrad) return "it computes no weight gradient";
  if (std::string refusal = refuse_split_math(p); !refusal.empty()) return refusal;
  if (p.pass == Pass::kInputGrad && std::max(p.stride.h, p.stride.w) > kDiagonalMostPhases) {
    return "it computes the input gradient for strides up to 4 only";
  }
  if (p.groups == 1) return "it needs groups";
  if (std::string refusal = refuse_before_sm_80(caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (p.N == 0) return "the batch is empty";
  if (std::string many = refuse_many_pixels(p); !many.empty()) return many;
  if (p.x_strides.c != 1 || p.y_strides.c != 1) {
    return "channels are not neighbours in the memory of both input and output";
  }
  if (std::max({p.x_strides.h, p.x_strides.w, p.y_strides.h, p.y_strides.w}) > kMaxExtent) {
    return "rows or columns are more than 2^29 elements apart";
  }
  return "";
}

Plan make_plan(DiagonalFit fit) {
  const DiagonalParams& p = fit.params;
  Plan plan;
  plan.engine = EngineId::kCudaDiagonal;
  plan.tile = {p.tile_rows, p.tile_columns,
               int64_t{p.chunks} * count_chunk_filters(fit.kernel.pieces)};
  plan.predicted_us = fit.microseconds;
  plan.geometry = make_geometry(std::move(fit));
  return plan;
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  DiagonalFit fit = fit_diagonal(problem, caps);
  if (fit.blocks == 0) return Refusal{"no tile fits in shared memory"};
  return make_plan(std::move(fit));
}

std::optional<Plan> plan_variant(const ConvProblem& problem, const DeviceCaps& caps,
                                 std::string_view variant) {
  for (const DiagonalTileSize& size : kDiagonalTileSizes) {
    if (variant != size.name) continue;
    DiagonalFit fit = fit_diagonal(problem, caps, size);
    if (fit.blocks > 0) return make_plan(std::move(fit));
  }
  return std::nullopt;
}

// Tile sizes other than the planned one.
std::vector<const char*> variants(const ConvProblem& problem, const DeviceCaps& caps) {
  const Plan chosen = make_plan(fit_diagonal(problem, caps));
  const DiagonalParams& p = geometry_of<DiagonalFit>(chosen).params;
  const int64_t pixels = chosen.tile.m * chosen.tile.n * p.row.phases * p.column.phases;
  std::vector<const char*> names;
  for (const DiagonalTileSize& size : kDiagonalTileSizes) {
    if (pixels > size.most / 2 && pixels <= size.most) continue;
    if (fit_diagonal(problem, caps, size).blocks > 0) names.push_back(size.name);
  }
  return names;
}

}  // namespace

double bound_diagonal_us(const ConvProblem& problem, const DeviceCaps& caps) {
  if (problem.pass == Pass::kWeightGrad || problem.N == 0) return 0;
  const double sms = std::max(caps.sm_count, 1);
  const GatherTensors view = make_gather_tensors(problem);
  // Every tap of every pixel reads one source chunk at least, for 16 or 8 filters (visit_tiles).
  // The blocks of a multiprocessor, of eight warps each, wait for it, unless there are more blocks
  // than fit at once.
  const bool is_tf32 = problem.dtype == DType::kFloat32;
  const bool has_few = is_tf32 && view.target_channels % 16 != 0;
  constexpr double kWaiting = kDiagonalBlocks * kDiagonalWarps;
  const bool waits = ceil_div(problem.K, int64_t{8}) <= caps.sm_count;
  const double tap_cycles =
      (has_few ? kFewFiltersTapCycles : kTapCycles) + (waits ? kTapLatency / kWaiting : 0);
  const double store_cycles = kStoreCycles + (waits ? kStoreLatency / kWaiting : 0);
  const double products =
      count_gather_products(problem) / static_cast<double>(view.source_channels);
  const double pixels = static_cast<double>(problem.N * view.target_h * view.target_w);
  const double values = pixels * static_cast<double>(problem.groups * view.target_channels);
  const double jobs_cycles =
      (products * tap_cycles + values * store_cycles) / (64 * (has_few ? 8 : 16));
  // Every block copies the channels that its filters read, in units of 16 bytes at most.
  const int64_t phases = problem.pass == Pass::kForward ? 1 : problem.stride.h * problem.stride.w;
  const double sources = static_cast<double>(problem.groups * view.source_channels);
  const double units = pixels / static_cast<double>(phases) * sources *
                       static_cast<double>(size_of(problem.dtype)) / 16;
  const double copy_cycles = units * (kUnitCycles + (is_tf32 ? kRoundCycles : 0));
  const double cycles = (jobs_cycles + copy_cycles) / sms;
  return kBoundFactor * (kLaunchUs + std::max(cycles / kCyclesPerUs / rates_of(caps).clock,
                                              predict_memory_us(problem, caps)));
}

DiagonalFit fit_diagonal(const ConvProblem& problem, const DeviceCaps& caps) {
  return fit_tiles(problem, caps, 0, most_pixels());
}
DiagonalFit fit_diagonal(const ConvProblem& problem, const DeviceCaps& caps,
                         const DiagonalTileSize& size) {
  return fit_tiles(problem, caps, size.most / 2, size.most);
}

DiagonalParams make_diagonal_params(const ConvProblem& problem, const DiagonalFit& fit,
                                    const Buffers& buffers) {
  DiagonalParams p = fit.params;
  set_gather_buffers(p, problem, buffers);
  const int64_t element = size_of(problem.dtype);
  p.unit = fit_unit_to_address(p.source, element, p.unit);
  const int64_t units = int64_t{p.source_chunks} * count_chunk_channels(element) / p.unit;
  p.by_units = FastDivmod(units);
  p.by_row_units = FastDivmod(units * p.staged_columns);
  p.lines_per_pass = narrow(std::max<int64_t>(kDiagonalThreads / (units * p.staged_columns), 1));
  const int vector = 2 * fit.kernel.pieces;
  p.vectors = fit_unit(element, int64_t{p.targets}, p.images > 1 ? p.target_n : 0, p.target_h,
                       p.target_w) >= vector &&
              is_aligned(p.target, problem.dtype, vector);
  return p;
}

void DiagonalFit::describe(Text& out) const {
  out << "tile " << params.tile_rows << "x" << params.tile_columns << " pixels";
  if (params.row.phases * params.column.phases > 1) out << " of a phase";
  out << " x " << params.chunks * count_chunk_filters(kernel.pieces) << " filters, "
      << kernel.warp_pixels << " pixels of a warp, " << count_text(params.depth, "source chunk");
}

Engine cuda_diagonal_engine() {
  return {.id = EngineId::kCudaDiagonal,
          .name = "cuda_diagonal",
          .consider = consider,
          .bound_us = bound_diagonal_us,
          .typical_ratio = 1.45,
          .separate_pass_us = separate_pass_us,
          .variants = variants,
          .plan_variant = plan_variant};
}

}  // namespace convx
