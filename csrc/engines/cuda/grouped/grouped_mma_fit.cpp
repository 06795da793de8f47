#include <algorithm>
#include <cmath>
#include <set>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "engines/cuda/grouped/grouped_planning.h"

namespace convx {
namespace {

constexpr int64_t kFragmentBytes = 512;  // per step
constexpr int64_t kPixelBytes = 8;       // of four channels
constexpr int64_t kElement = 2;          // bytes

// Values that all tiles of a problem share.
struct MmaProblem {
  const DeviceCaps& caps;
  GroupedMmaFit fit;
  int64_t window_rows;  // output rows of a cell
  int64_t margin;       // pixels of a line before the first one that is read
  bool rows_follow;     // rows are contiguous in the target, without gaps
  bool filters_follow;  // whole planes are, too
  double least_bytes;
};

// Sets how lines are copied by units, except for the divisor.
void lay_out_units(GroupedMmaParams& p, int unit) {
  int64_t first = 0;
  int64_t end = p.staged_columns;
  if (p.tile_cols >= p.column.count) {  // skip columns that are padding in every tile
    first = std::max<int64_t>(first, -p.column_start);
    end = std::clamp<int64_t>(p.source_width - p.column_start, first + 1, std::max(end, first + 1));
  }
  p.unit = unit;
  p.first_unit = narrow(first / unit);
  p.units = narrow(ceil_div(end, unit)) - p.first_unit;
}

void set_unit(GroupedMmaParams& p, int unit) {
  lay_out_units(p, unit);
  p.by_units = FastDivmod(p.units);
}

// Collects the source rows that a cell reads. Returns false if there are too many.
bool set_source_rows(GroupedMmaParams& p, int64_t window_rows) {
  std::set<int64_t> rows;
  for (int64_t row = 0; row < window_rows; ++row) {
    for (int64_t tap = 0; tap < p.row.taps; ++tap) {
      rows.insert(row * p.row.source_step + tap * p.row.offset_step);
      if (rows.size() > kMostWindowRows) return false;
    }
  }
  if (*rows.rbegin() > INT16_MAX || p.column.taps > INT16_MAX) return false;
  std::copy(rows.begin(), rows.end(), p.source_rows);
  p.window_lines = narrow(static_cast<int64_t>(rows.size()) * p.quads);
  return true;
}

bool is_for_tensor_cores(const ConvProblem& problem, const DeviceCaps& caps) {
  return size_of(problem.dtype) == kElement && caps.compute_major >= 8 && caps.code_arch >= 80;
}

// Returns false if the tensor-core kernel does not support the problem.
bool set_problem(const ConvProblem& problem, MmaProblem& of) {
  GroupedMmaParams& p = of.fit.params;
  static_cast<GroupedTask&>(p) = make_grouped_task(problem);
  of.fit.kernel.filters = p.target_channels <= 4 ? 4 : p.target_channels <= 8 ? 8 : 16;
  of.window_rows = count_window_rows(of.fit.kernel.filters);
  of.least_bytes = count_bytes(problem);
  p.quads = narrow(ceil_div(p.source_channels, kQuadChannels));
  if (!set_source_rows(p, of.window_rows)) return false;
  const int64_t taps = p.column.taps;
  p.steps = narrow(p.window_lines / kStepQuads * taps +
                   ceil_div(p.window_lines % kStepQuads * taps, kStepQuads));
  p.unit = fit_unit(kElement, int64_t{p.source_width}, p.images > 1 ? p.source_n : 0, p.source_c,
                    p.source_h);
  // Lines begin at a multiple of the copy unit.
  of.margin = floor_mod(p.column.offset0, p.unit);
  p.column_start = narrow(p.column.offset0 - of.margin);
  const int64_t width = p.column.count;
  const int64_t filters = int64_t{p.groups} * p.target_channels;
  of.rows_follow = p.row.count == 1 || p.target_h == width;
  of.filters_follow =
      of.rows_follow && (filters == 1 || p.target_c == int64_t{p.row.count} * width);
  const auto is_even = [](int64_t extent, int64_t stride) {
    return extent == 1 || stride % 2 == 0;
  };
  p.pairs = width % 2 == 0 && is_even(p.row.count, p.target_h) && is_even(filters, p.target_c) &&
            is_even(p.images, p.target_n);
  p.by_quads = FastDivmod(p.quads);
  p.by_steps = FastDivmod(p.steps);
  return true;
}

// Chooses the layout of the outputs in shared memory. Returns its size in elements, with gaps.
int64_t set_spans(const MmaProblem& of, const GroupedTile& tile, GroupedMmaParams& p) {
  const int64_t width = p.column.count;
  const int64_t filters = tile.groups * p.target_channels;
  // The smallest pitch >= results that is congruent to the target's stride modulo 16 bytes.
  const auto fit_pitch = [](int64_t results, int64_t stride, int64_t modulus, int64_t remainder) {
    const int64_t wanted = remainder + floor_mod(stride, kResultChunk);
    return narrow(results + floor_mod(wanted - results, modulus));
  };
  // The number of 16-byte chunks that a span touches at most, wherever it begins.
  const auto count_chunks = [](int64_t results) {
    return narrow(ceil_div(results + kResultChunk - 1, kResultChunk));
  };
  const bool whole_rows = tile.columns >= width && of.rows_follow;
  p.row_pitch = narrow(width);
  if (whole_rows && tile.rows >= p.row.count && of.filters_follow) {
    p.spans = ResultSpans::kTile;
    p.filter_pitch = narrow(p.row.count * width);
    p.span_chunks = count_chunks(filters * p.filter_pitch);
  } else if (whole_rows) {
    p.spans = ResultSpans::kFilters;
    const int64_t results = std::min<int64_t>(tile.rows, p.row.count) * width;
    p.span_chunks = count_chunks(results);
    // With this pitch, the same outputs of four filters lie in different banks.
    p.filter_pitch = fit_pitch(results, p.target_c, 64, 16);
  } else {
    p.spans = ResultSpans::kRows;
    p.span_chunks = count_chunks(tile.columns);
    p.row_pitch = fit_pitch(tile.columns, p.target_h, kResultChunk, 0);
    p.filter_pitch = fit_pitch(tile.rows * p.row_pitch, p.target_c, kResultChunk, 0);
  }
  return round_up(filters * p.filter_pitch + kResultChunk, kResultChunk);
}

double predict_us(const MmaProblem& of, const GroupedMmaFit& fit) {
  const GroupedMmaParams& p = fit.params;
  const double warps = kGroupedMmaThreads / 32;
  const double images = p.tile_images;
  const double filters = static_cast<double>(p.tile_groups) * p.target_channels;
  const double lines = static_cast<double>(p.tile_groups) * p.staged_rows * p.quads;
  const double units = lines * p.units;
  const double chunks =
      p.span_chunks * (p.spans == ResultSpans::kTile      ? 1
                       : p.spans == ResultSpans::kFilters ? filters
                                                          : filters * p.tile_rows);
  const auto passes = [](double count) { return std::ceil(count / kGroupedMmaThreads); };
  const double fragment_words = static_cast<double>(p.tile_groups) * p.steps * 128;
  const double jobs = static_cast<double>(p.tile_groups) * p.group_jobs;
  const double mmas = jobs * p.steps * fit.kernel.cells;
  const double put = p.pairs ? kGroupedMmaPutIssue : 2 * kGroupedMmaPutIssue;
  const double unit_issue = kGroupedMmaUnitIssue + kGroupedMmaPixelIssue * p.unit;
  GroupedWork work{};
  work.blocks = static_cast<double>(fit.blocks);
  work.issue =
      warps * (kGroupedBlockIssue + passes(fragment_words) * kGroupedMmaFragmentIssue +
               passes(lines * p.line_pitch / 2) * kGroupedMmaClearIssue) +
      images * (warps * (passes(units) * unit_issue + passes(chunks) * kGroupedMmaChunkIssue) +
                jobs * (kGroupedMmaJobIssue + fit.kernel.cells * put +
                        p.steps * (kGroupedMmaStepIssue + fit.kernel.cells * kGroupedMmaIssue)));
  const double results =
      filters * std::min(p.tile_rows, p.row.count) * std::min(p.tile_cols, p.column.count);
  work.wavefronts =
      images * (mmas * kGroupedMmaCycles + units * p.unit * kQuadChannels * kElement / 128 +
                2 * results * kElement / 128);
  work.busy_warps = warps;
  const double copied_rows = (std::min(p.tile_rows, p.row.count) - 1.0) * p.row.source_step +
                             (p.row.taps - 1.0) * p.row.offset_step + 1;
  const double copied = p.tile_groups * copied_rows * p.source_channels * p.units * p.unit;
  work.moved_bytes = images * (copied + results) * kElement;
  work.steps = images;
  work.least_bytes = of.least_bytes;
  work.resident = fit.resident;
  work.overlaps = false;
  return predict_grouped_us(work, of.caps);
}

// Microseconds that no launch with this tile falls below, because of its MMAs.
double bound_tile_us(const MmaProblem& of, const GroupedTile& tile) {
  const GroupedMmaParams& p = of.fit.params;
  const int64_t octets = tile.columns / kOctet, windows = tile.rows / of.window_rows;
  const double mmas =
      count_grouped_blocks(p, tile) * static_cast<double>(tile.groups * octets * windows) * p.steps;
  return bound_grouped_us(mmas * kGroupedMmaIssue, mmas * kGroupedMmaCycles, of.least_bytes,
                          of.caps);
}

// Sets all parameters of a tile except tile_images. Returns false if the tile does not fit.
bool fit_tile(const MmaProblem& of, const GroupedTile& tile, GroupedMmaFit& fit) {
  fit = of.fit;
  GroupedMmaParams& p = fit.params;
  const CudaAxis& row = p.row;
  const CudaAxis& column = p.column;
  const int64_t staged_columns = of.margin + column.count_span(tile.columns);
  // An odd multiple of four puts the pixels of four neighbouring lines into different banks.
  const int64_t line_pitch = round_up(round_up(staged_columns, p.unit) - 4, 8) + 4;
  const int64_t octets = tile.columns / kOctet;
  // A job may have cells below the tile's last ones. They compute unused outputs from lines of
  // zeros.
  const int64_t windows = tile.rows / of.window_rows;
  const int64_t many = round_up(windows, kManyCells);
  const int64_t few = round_up(windows, kFewCells);
  fit.kernel.cells = many <= few ? kManyCells : kFewCells;
  const int64_t staged_rows = row.count_span(std::min(many, few) * of.window_rows);
  const int64_t row_bytes = p.quads * line_pitch * kPixelBytes;
  const int64_t line_bytes = round_up(tile.groups * staged_rows * row_bytes, 16);
  const int64_t results = set_spans(of, tile, p);
  const int64_t quads_offset =
      line_bytes + tile.groups * staged_rows * p.quads * static_cast<int64_t>(sizeof(StagedLine));
  const int64_t fragments_offset =
      quads_offset + p.steps * kStepQuads * static_cast<int64_t>(sizeof(TapQuad));
  const int64_t bias_offset = fragments_offset + tile.groups * p.steps * kFragmentBytes;
  const int64_t results_offset = round_up(bias_offset + tile.groups * fit.kernel.filters * 4, 16);
  fit.shared_bytes = results_offset + results * kElement;
  if (fit.shared_bytes > of.caps.shared_bytes_per_block) return false;
  fit.resident =
      std::min<int64_t>(of.caps.count_blocks_by_shared(fit.shared_bytes), kGroupedMmaBlocks);

  p.tile_groups = narrow(tile.groups);
  p.tile_rows = narrow(tile.rows), p.tile_cols = narrow(tile.columns);
  p.staged_rows = narrow(staged_rows), p.staged_columns = narrow(staged_columns);
  p.line_pitch = narrow(line_pitch);
  p.group_jobs = narrow(octets * std::min(many, few) / fit.kernel.cells);
  p.cell_start = narrow(of.margin * kPixelBytes);
  p.group_bytes = narrow(staged_rows * row_bytes);
  p.window_bytes = narrow(of.window_rows * row.source_step * row_bytes);
  p.pixel_bytes = narrow(column.source_step * kPixelBytes);
  p.octet_bytes = kOctet * p.pixel_bytes;
  p.places_offset = narrow(line_bytes), p.quads_offset = narrow(quads_offset);
  p.fragments_offset = narrow(fragments_offset);
  p.bias_offset = narrow(bias_offset), p.results_offset = narrow(results_offset);
  lay_out_units(p, p.unit);
  return true;
}

// FastDivmod constructors are slow, so only the chosen tile gets its divisors.
void set_divisors(GroupedMmaParams& p) {
  set_tile_divisors(p);
  set_unit(p, p.unit);
  p.by_staged_rows = FastDivmod(p.staged_rows);
  p.by_octets = FastDivmod(p.tile_cols / kOctet);
  p.by_group_jobs = FastDivmod(p.group_jobs);
  p.by_span_chunks = FastDivmod(p.span_chunks);
  p.by_tile_rows = FastDivmod(p.tile_rows);
}

}  // namespace

GroupedMmaFit fit_grouped_mma(const ConvProblem& problem, const DeviceCaps& caps,
                              double give_up_us) {
  MmaProblem of{caps, {}, 0, 0, false, false, 0};
  if (!is_for_tensor_cores(problem, caps) || !set_problem(problem, of)) return {};
  const GroupedMmaParams& p = of.fit.params;
  GroupedMmaFit best = find_fastest_tile<GroupedMmaFit>(
      p, caps, of.window_rows, kOctet, 1, give_up_us,
      [&](const GroupedTile& tile) { return bound_tile_us(of, tile); },
      [&](const GroupedTile& tile, int64_t, GroupedMmaFit& fit) { return fit_tile(of, tile, fit); },
      [&](GroupedMmaFit& fit) {
        fit.microseconds = predict_us(of, fit);
        return true;
      });
  if (best.blocks > 0) set_divisors(best.params);
  return best;
}

GroupedMmaParams make_grouped_mma_params(const ConvProblem& problem, const GroupedMmaFit& fit,
                                         const Buffers& buffers) {
  GroupedMmaParams params = fit.params;
  set_gather_buffers(params, problem, buffers);
  const int unit = fit_unit_to_address(params.source, kElement, params.unit);
  if (unit < params.unit) set_unit(params, unit);
  params.pairs = params.pairs && fit_unit_to_address(params.target, kElement, 2) == 2;
  return params;
}

}  // namespace convx
