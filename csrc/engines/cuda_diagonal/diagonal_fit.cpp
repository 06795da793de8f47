#include "engines/cuda_diagonal/diagonal_fit.h"

#include <algorithm>
#include <cmath>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "engines/cuda_staging.h"
#include "engines/device_rates.h"
#include "engines/gather_buffers.h"

namespace convx {
namespace {

// Reckoned, not fitted: cycles of a multiprocessor.
constexpr double kReadCycles = 4.4;      // 16 pixels' chunk out of shared memory
constexpr double kWordCycles = 4.4;      // a tap's weights, for 64 pixels
constexpr double kProductCycles = 2;     // 16 pixels by 8 filters
constexpr double kUnitCycles = 0.25;     // copying a unit of a thread
constexpr double kStoreCycles = 24;      // 64 pixels' chunk
constexpr double kLatencyCycles = 1500;  // until the first pixels are there
constexpr double kCopyBytes = 18;        // a cycle, of pixels that come in
constexpr double kWeightCycles = 1.5;    // a word of weights
constexpr double kCyclesPerUs = 1700;
constexpr double kBytesPerUs = 3.4e6;
constexpr double kLaunchUs = 4;
constexpr double kReferenceSms = 132;

int narrow(int64_t value) { return static_cast<int>(value); }

int64_t count_span(const CudaAxis& axis, int64_t results) {
  return (results - 1) * axis.source_step + int64_t{axis.taps - 1} * axis.offset_step + 1;
}

DiagonalParams make_tensors(const ConvProblem& problem) {
  const GatherView view = make_gather_view(problem);
  const Strides& from = view.source_strides;
  const Strides& to = view.target_strides;
  DiagonalParams p{};
  p.source_n = from.n, p.source_h = from.h, p.source_w = from.w;
  p.target_n = to.n, p.target_h = to.h, p.target_w = to.w;
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
  // An odd number of units of 16 bytes: eight neighbouring pixels' are in different banks.
  p.pixel_bytes = p.chunks * kChunkBytes + 16;
  return p;
}

// Blocks is 0 where it does not fit.
DiagonalFit fit_tile(const ConvProblem& problem, const DeviceCaps& caps,
                     const DiagonalParams& tensors, int64_t rows, int64_t columns) {
  DiagonalFit fit;
  DiagonalParams& p = fit.params;
  p = tensors;
  p.tile_rows = narrow(rows), p.tile_columns = narrow(columns);
  p.row_tiles = narrow(ceil_div(int64_t{p.row.count}, rows));
  p.column_tiles = narrow(ceil_div(int64_t{p.column.count}, columns));
  const int64_t element = size_of(problem.dtype);
  const int64_t taps = int64_t{p.row.taps} * p.column.taps;
  const int64_t words = taps * p.chunks * 32 * count_chunk_words(element);
  const int64_t staged_rows = count_span(p.row, rows);
  const int64_t staged_columns = count_span(p.column, columns);
  if (staged_rows > caps.shared_bytes_per_block || staged_columns > caps.shared_bytes_per_block) {
    return fit;
  }
  fit.shared_bytes = words * 4 + staged_rows * staged_columns * p.pixel_bytes;
  if (fit.shared_bytes > caps.shared_bytes_per_block) return fit;
  p.pixels_offset = narrow(words * 4);
  p.staged_rows = narrow(staged_rows), p.staged_columns = narrow(staged_columns);

  const double sms = std::max(caps.sm_count, 1);
  const int64_t resident = std::clamp<int64_t>(
      (caps.shared_bytes_per_block + 1024) / (fit.shared_bytes + 1024), 1, kDiagonalBlocks);
  const int64_t tiles = problem.N * p.row_tiles * p.column_tiles;
  const int64_t at_once = static_cast<int64_t>(sms) * resident;
  const int64_t shares = std::clamp<int64_t>(at_once / p.sets, 1, tiles);
  fit.blocks = shares * p.sets;
  const double jobs = std::ceil(static_cast<double>(rows * columns) / kDiagonalPixels) * p.chunks;
  const double tap =
      kWordCycles + 4 * kReadCycles + 4 * kProductCycles * (count_chunk_channels(element) / 8);
  const auto pixels = static_cast<double>(staged_rows * staged_columns * p.chunks);
  const double units = pixels * count_chunk_channels(element) / p.unit;
  const double work = jobs * (static_cast<double>(taps) * tap + kStoreCycles) + units * kUnitCycles;
  const double copies = pixels * kChunkBytes / kCopyBytes;
  // One block's copies overlap with another's products.
  const double tile = resident > 1 ? std::max(work, copies) : work + copies + kLatencyCycles;
  const double turns = std::ceil(static_cast<double>(tiles) / static_cast<double>(shares));
  const double of_sm = std::ceil(static_cast<double>(fit.blocks) / sms);
  const double cycles = of_sm * (turns * tile + static_cast<double>(words) * kWeightCycles);
  const DeviceRates rates = rates_of(caps);
  fit.microseconds =
      kLaunchUs + std::max(cycles / kCyclesPerUs / rates.clock,
                           count_bytes(problem) / kBytesPerUs / rates.memory * kReferenceSms / sms);
  return fit;
}

}  // namespace

DiagonalFit fit_diagonal(const ConvProblem& problem, const DeviceCaps& caps) {
  const DiagonalParams tensors = make_tensors(problem);
  constexpr int64_t kMostPixels = 1024;
  DiagonalFit best;
  for (int64_t cut = 1;; cut = next_size(cut)) {
    const int64_t columns = ceil_div(int64_t{tensors.column.count}, cut);
    for (int64_t rows = 1;; rows = next_size(rows)) {
      rows = std::min<int64_t>(rows, tensors.row.count);
      if (rows > 1 && rows * columns > kMostPixels) break;
      const DiagonalFit fit = fit_tile(problem, caps, tensors, rows, columns);
      if (fit.blocks == 0) break;
      if (best.blocks == 0 || fit.microseconds < best.microseconds) best = fit;
      if (rows == tensors.row.count) break;
    }
    if (columns <= 8) break;
  }
  if (best.blocks > 0) best.params.by_tile_columns = FastDivmod(best.params.tile_columns);
  return best;
}

DiagonalParams make_diagonal_params(const ConvProblem& problem, const DiagonalFit& fit,
                                    const Buffers& buffers) {
  DiagonalParams p = fit.params;
  set_gather_buffers(p, problem, buffers);
  const int64_t element = size_of(problem.dtype);
  p.unit = fit_unit_to_address(p.source, element, p.unit);
  const int vector = narrow(8 / element);
  p.vectors =
      fit_unit(element, problem.C, p.images > 1 ? p.target_n : 0, p.row.count > 1 ? p.target_h : 0,
               p.column.count > 1 ? p.target_w : 0) >= vector &&
      is_aligned(p.target, problem.dtype, vector);
  return p;
}

}  // namespace convx
