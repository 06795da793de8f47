#include "engines/cuda_diagonal/diagonal_fit.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "engines/cuda_staging.h"
#include "engines/device_rates.h"
#include "engines/gather_buffers.h"

namespace convx {
namespace {

// Fitted to an H200 (docs/engines/cuda_diagonal.md). Busy cycles of a multiprocessor for:
constexpr double kTapCycles = 13.7;      // one tap of one chunk of 64 pixels, in 16 bits
constexpr double kTf32TapCycles = 10.6;  // the same in TF32, with half as many filters
constexpr double kStoreCycles = 54;      // storing one chunk of 64 pixels
constexpr double kUnitCycles = 0.46;     // copying one unit
constexpr double kRoundCycles = 0.15;    // rounding one unit to TF32
constexpr double kWordCycles = 0.46;     // staging one word of weights
// Latency in cycles that a block adds even if it is alone on its multiprocessor:
constexpr double kTileLatency = 1960;   // one tile
constexpr double kStoreLatency = 1130;  // 64 pixels of a warp
constexpr double kTapLatency = 82;      // one tap
constexpr double kBlockLatency = 790;   // start of the block
constexpr double kCyclesPerUs = 1750;
constexpr double kBytesPerUs = 3.2e6;
constexpr double kLaunchUs = 4;
constexpr double kReferenceSms = 132;

int narrow(int64_t value) { return static_cast<int>(value); }

DiagonalParams make_tensors(const ConvProblem& problem) {
  const GatherView view = make_gather_view(problem);
  const Strides& from = view.source_strides;
  const Strides& to = view.target_strides;
  DiagonalParams p{};
  p.source_n = from.n, p.source_h = narrow(from.h), p.source_w = narrow(from.w);
  p.target_n = to.n, p.target_h = narrow(to.h), p.target_w = narrow(to.w);
  p.weight_group = problem.filters_per_group() * problem.w_strides.n;
  p.weight_target = view.weight_target_stride, p.weight_source = view.weight_source_stride;
  p.weight_r = problem.w_strides.h, p.weight_s = problem.w_strides.w;
  p.images = narrow(problem.N);
  p.channels = narrow(problem.C);
  p.group_channels = narrow(problem.channels_per_group());
  p.source_height = narrow(view.source_h), p.source_width = narrow(view.source_w);
  p.row = make_cuda_axis(make_gather_axis(view.rows[0], false));
  p.column = make_cuda_axis(make_gather_axis(view.columns[0], false));
  const int64_t element = size_of(problem.dtype);
  const int64_t chunks = ceil_div(problem.C, int64_t{count_chunk_channels(element)});
  p.chunks = chunks > 2 ? kDiagonalMostChunks : narrow(chunks);
  p.sets = narrow(ceil_div(chunks, int64_t{p.chunks}));
  p.unit = fit_unit(element, problem.C, p.images > 1 ? p.source_n : 0,
                    p.source_height > 1 ? p.source_h : 0, p.source_width > 1 ? p.source_w : 0);
  // The pitch is an odd multiple of 16 bytes, so that ldmatrix reads eight neighbouring pixels from
  // different banks.
  p.pixel_bytes = p.chunks * kChunkBytes + 16;
  return p;
}

int64_t count_words(const ConvProblem& problem, const DiagonalParams& p) {
  return int64_t{p.row.taps} * p.column.taps * p.chunks * 32 *
         count_chunk_words(size_of(problem.dtype));
}

// Returns whether a tile of rows x columns output pixels fits.
bool set_tile(const ConvProblem& problem, const DeviceCaps& caps, int64_t rows, int64_t columns,
              DiagonalFit& fit) {
  DiagonalParams& p = fit.params;
  p.tile_rows = narrow(rows), p.tile_columns = narrow(columns);
  p.row_tiles = narrow(ceil_div(int64_t{p.row.count}, rows));
  p.column_tiles = narrow(ceil_div(int64_t{p.column.count}, columns));
  const int64_t staged_rows = p.row.count_span(rows);
  const int64_t staged_columns = p.column.count_span(columns);
  if (staged_rows > caps.shared_bytes_per_block || staged_columns > caps.shared_bytes_per_block) {
    return false;
  }
  // The kernel computes offsets within a tile in 32 bits.
  const auto is_far = [&](int64_t h, int64_t w) {
    return staged_rows * h + staged_columns * w + problem.C >= int64_t{1} << 31;
  };
  if (is_far(p.source_h, p.source_w) || is_far(p.target_h, p.target_w)) return false;
  const int64_t weights = 4 * count_words(problem, p);
  const int64_t stage = staged_rows * staged_columns * p.pixel_bytes;
  fit.shared_bytes = weights + 2 * stage;
  if (fit.shared_bytes > caps.shared_bytes_per_block) return false;
  p.pixels_offset = narrow(weights);
  p.stage_bytes = narrow(stage);
  p.staged_rows = narrow(staged_rows), p.staged_columns = narrow(staged_columns);
  return true;
}

// Also sets fit.blocks.
void predict(const ConvProblem& problem, const DeviceCaps& caps, DiagonalFit& fit) {
  const DiagonalParams& p = fit.params;
  const double sms = std::max(caps.sm_count, 1);
  const int64_t resident =
      std::clamp<int64_t>(caps.count_blocks_by_shared(fit.shared_bytes), 1, kDiagonalBlocks);
  const int64_t tiles = problem.N * p.row_tiles * p.column_tiles;
  const int64_t at_once = static_cast<int64_t>(sms) * resident;
  const int64_t shares = std::clamp<int64_t>(at_once / p.sets, 1, tiles);
  fit.blocks = shares * p.sets;
  const int64_t groups =  // of 64 pixels
      ceil_div(int64_t{p.tile_rows} * p.tile_columns, int64_t{kDiagonalPixels});
  const int64_t turns_of_warp = ceil_div(groups, int64_t{kDiagonalWarps / p.chunks});
  const double taps = double{p.row.taps} * p.column.taps;
  const bool is_tf32 = problem.dtype == DType::kFloat32;
  const double units = double{p.staged_rows} * p.staged_columns * p.chunks *
                       count_chunk_channels(size_of(problem.dtype)) / p.unit;
  const double busy = static_cast<double>(groups * p.chunks) *
                          (taps * (is_tf32 ? kTf32TapCycles : kTapCycles) + kStoreCycles) +
                      units * (kUnitCycles + (is_tf32 ? kRoundCycles : 0));
  const double waiting =
      kTileLatency + static_cast<double>(turns_of_warp) * (taps * kTapLatency + kStoreLatency);
  const double of_sm = std::ceil(static_cast<double>(fit.blocks) / sms);
  const auto turns = static_cast<double>(ceil_div(tiles, shares));
  const auto words = static_cast<double>(count_words(problem, p));
  const double cycles =
      turns * (of_sm * busy + waiting) + of_sm * words * kWordCycles + kBlockLatency;
  const DeviceRates rates = rates_of(caps);
  fit.microseconds =
      kLaunchUs + std::max(cycles / kCyclesPerUs / rates.clock,
                           count_bytes(problem) / kBytesPerUs / rates.memory * kReferenceSms / sms);
}

// Returns the fastest tile with more than `over` and at most `most` pixels.
DiagonalFit fit_tiles(const ConvProblem& problem, const DeviceCaps& caps, int64_t over,
                      int64_t most) {
  const DiagonalParams tensors = make_tensors(problem);
  DiagonalFit best;
  for (int64_t cut = 1;; cut = next_size(cut)) {
    const int64_t columns = ceil_div(int64_t{tensors.column.count}, cut);
    for (int64_t rows = 1;; rows = next_size(rows)) {
      rows = std::min<int64_t>(rows, tensors.row.count);
      if (rows * columns > most) break;
      DiagonalFit fit{.params = tensors};
      if (!set_tile(problem, caps, rows, columns, fit)) break;
      if (rows * columns > over) {
        predict(problem, caps, fit);
        if (best.blocks == 0 || fit.microseconds < best.microseconds) best = fit;
      }
      if (rows == tensors.row.count) break;
    }
    if (columns <= 8) break;
  }
  if (best.blocks > 0) {
    best.params.by_tile_columns = FastDivmod(best.params.tile_columns);
    best.params.by_staged_columns = FastDivmod(best.params.staged_columns);
  }
  return best;
}

}  // namespace

DiagonalFit fit_diagonal(const ConvProblem& problem, const DeviceCaps& caps) {
  return fit_tiles(problem, caps, 0, std::end(kDiagonalTileSizes)[-1].most);
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
  p.by_units = FastDivmod(p.chunks * count_chunk_channels(element) / p.unit);
  const int vector = narrow(8 / element);
  p.vectors =
      fit_unit(element, problem.C, p.images > 1 ? p.target_n : 0, p.row.count > 1 ? p.target_h : 0,
               p.column.count > 1 ? p.target_w : 0) >= vector &&
      is_aligned(p.target, problem.dtype, vector);
  return p;
}

}  // namespace convx
