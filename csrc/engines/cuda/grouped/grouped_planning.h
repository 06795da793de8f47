// What the planners of the family share: cuda_grouped's cost model, the tensors' extents, and the
// search for tiles of both NCHW kernels. Plain host code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/gather_view.h"
#include "engines/cuda/grouped/grouped_geometry.h"
#include "planning/staged_rows.h"

namespace convx {

// Constants of cuda_grouped's cost model: warp instructions counted in the compiled kernels, and
// the rates of an H200. They are not fitted to measured times.
constexpr double kGroupedLaunchUs = 4;
constexpr double kGroupedBytesPerUs = 3.6e6;        // a plain copy reaches 4.25e6
constexpr double kGroupedExcessBytesPerUs = 8.0e6;  // halo of tiles, read again from L2
constexpr double kGroupedReferenceSms = 132;
constexpr double kGroupedCyclesPerUs = 1750;
constexpr double kGroupedIssuePerCycle = 3.2;   // warp instructions; the peak is 4
constexpr double kGroupedWarpIssue = 0.28;      // the most that one warp contributes to that
constexpr double kGroupedBlockIssue = 450;      // locating block, unit and cell
constexpr double kGroupedStepIssue = 90;        // waiting, and locating the next copies
constexpr double kGroupedImageIssue = 80;       // initializing the accumulators with the bias
constexpr double kGroupedChannelIssue = 8;      // loop overhead
constexpr double kGroupedRunIssue = 40;         // start of a run of taps (kSegments)
constexpr double kGroupedTapRowIssue = 5;       // loop overhead of a run, per row of taps
constexpr double kGroupedStoreIssue = 6;        // one vector store
constexpr double kGroupedNarrowStoreBytes = 2;  // traffic factor of stores below a sector
constexpr double kGroupedUnitIssue = 6;         // copying one unit of one channel
constexpr double kGroupedElementIssue = 10;     // the same through registers
constexpr double kGroupedLineIssue = 14;        // advancing to a line, for all channels of a chunk
constexpr double kGroupedWeightRowIssue = 100;  // locating one row of a filter's taps
constexpr double kGroupedWeightIssue = 12;      // staging one of its weights
// With one buffer a block waits for its own copies, and other blocks have to fill that time.
constexpr double kGroupedOneBufferCost = 0.5;  // divided by the resident blocks

constexpr double kGroupedOverlapLoss = 0.15;  // fraction of the shorter of copies and arithmetic

// Constants of the tensor-core kernel, counted in its instructions, not fitted.
constexpr double kGroupedMmaUnitIssue = 42;      // locating and reading a unit of four channels
constexpr double kGroupedMmaPixelIssue = 3;      // interleaving the channels of one pixel
constexpr double kGroupedMmaFragmentIssue = 70;  // staging one word of weights
constexpr double kGroupedMmaClearIssue = 2;      // clearing 16 bytes of a line
constexpr double kGroupedMmaJobIssue = 60;       // locating the cells of a warp
constexpr double kGroupedMmaStepIssue = 8;       // loading the weights and offsets of a step
constexpr double kGroupedMmaIssue = 3;           // one MMA with its pixel's address and load
constexpr double kGroupedMmaPutIssue = 18;       // outputs of a cell to shared memory
constexpr double kGroupedMmaChunkIssue = 40;     // 16 bytes of them to the target
constexpr double kGroupedMmaCycles = 2.6;        // shared memory or tensor core, per MMA

// The work of a launch. Counts are per block unless stated otherwise.
struct GroupedWork {
  double blocks;
  double issue;       // warp instructions
  double wavefronts;  // shared-memory cycles
  double busy_warps;  // warps that have a cell to compute
  double moved_bytes;
  double steps;        // pipeline steps that follow each other
  double least_bytes;  // of the whole problem, counting each byte once
  int64_t resident;    // blocks per multiprocessor
  bool overlaps;       // the block's copies overlap with its own arithmetic
};

inline double predict_grouped_us(const GroupedWork& work, const DeviceCaps& caps) {
  const double sms = std::max(caps.sm_count, 1);
  const double scale = sms / kGroupedReferenceSms;
  const double per_sm = std::max(1.0, work.blocks / sms);
  const double resident = std::min(static_cast<double>(work.resident), per_sm);
  const double warps = resident * work.busy_warps;
  // Warps stay with one of the four schedulers, and the scheduler with the most warps ends last.
  const double share = warps / (std::ceil(warps / 4) * 4);
  const double rate = std::min(kGroupedIssuePerCycle * share, kGroupedWarpIssue * warps);
  const double compute =
      per_sm * std::max(work.issue / rate, work.wavefronts) / kGroupedCyclesPerUs;
  const double excess = std::max(0.0, work.blocks * work.moved_bytes - work.least_bytes);
  const double memory =
      (work.least_bytes / kGroupedBytesPerUs + excess / kGroupedExcessBytesPerUs) / scale /
      std::min(1.0, work.blocks / sms);
  // The first copies and the last arithmetic on a multiprocessor overlap with nothing.
  const double rounds = work.steps * std::ceil(per_sm / resident);
  const double busy = std::max(compute, memory) +
                      std::min(compute, memory) * std::min(1.0, kGroupedOverlapLoss + 1 / rounds);
  const double uneven = std::ceil(per_sm) / per_sm;
  const double alone = work.overlaps ? 1 : 1 + kGroupedOneBufferCost / resident;
  return kGroupedLaunchUs + busy * uneven * alone;
}

// Microseconds that predict_grouped_us() does not fall below for blocks that have so many warp
// instructions and shared-memory cycles together.
inline double bound_grouped_us(double issue, double wavefronts, double least_bytes,
                               const DeviceCaps& caps) {
  const double sms = std::max(caps.sm_count, 1);
  const double compute =
      std::max(issue / kGroupedIssuePerCycle, wavefronts) / sms / kGroupedCyclesPerUs;
  const double memory = least_bytes / kGroupedBytesPerUs / (sms / kGroupedReferenceSms);
  const double busy = std::max(compute, memory) + std::min(compute, memory) * kGroupedOverlapLoss;
  return kBoundFactor * (kGroupedLaunchUs + busy);
}

// Sets the extents and strides that all kernels of the family need, cuda_diagonal's too.
template <typename Params>
void set_grouped_tensors(const ConvProblem& problem, const GatherView& view, Params& p) {
  p.source_n = view.source_strides.n, p.target_n = view.target_strides.n;
  p.source_h = static_cast<decltype(p.source_h)>(view.source_strides.h);
  p.target_h = static_cast<decltype(p.target_h)>(view.target_strides.h);
  p.weight_group = problem.filters_per_group() * problem.w_strides.n;
  p.weight_target = static_cast<decltype(p.weight_target)>(view.weight_target_stride);
  p.weight_source = static_cast<decltype(p.weight_source)>(view.weight_source_stride);
  p.source_channels = narrow(view.source_channels);
  p.target_channels = narrow(view.target_channels);
  p.source_height = narrow(view.source_h), p.source_width = narrow(view.source_w);
}

// Sets everything except the buffers and the tile.
GroupedTask make_grouped_task(const ConvProblem& problem);

// The number of tiles of one image.
int64_t count_grouped_tiles(const GroupedTask& task);

// FastDivmod constructors are slow: call this only for the chosen tile.
void set_tile_divisors(GroupedTask& task);

struct GroupedTile {
  int64_t groups, rows, columns;
};

// The number of blocks, if each computes one image.
inline double count_grouped_blocks(const GroupedTask& task, const GroupedTile& tile) {
  return static_cast<double>(task.images * ceil_div(task.groups, tile.groups) *
                             ceil_div(task.row.count, tile.rows) *
                             ceil_div(task.column.count, tile.columns));
}

// Calls consider(tile) for tiles whose rows and columns are multiples of the given steps. It
// returns whether the tile fits; if one does not, larger ones are not tried.
template <typename Consider>
void visit_grouped_tiles(const GroupedTask& task, int64_t row_step, int64_t column_step,
                         const Consider& consider) {
  constexpr int64_t kLeastCutColumns = 32;
  bool any = false;
  // Long rows are cut into column tiles, because bands of few rows would read much halo.
  for (int64_t cut = 1; cut <= task.column.count; cut = next_size(cut)) {
    const int64_t columns = round_up(ceil_div(task.column.count, cut), column_step);
    for (int64_t steps = 1;; steps = next_size(steps)) {
      const int64_t rows = std::min(steps * row_step, round_up(task.row.count, row_step));
      bool fits = false;
      for (int64_t groups = 1; groups <= task.groups; groups = next_size(groups)) {
        if (!consider(GroupedTile{groups, rows, columns})) break;
        fits = true;
      }
      any |= fits;
      if (!fits || rows >= task.row.count) break;
    }
    if ((any && columns <= kLeastCutColumns) || columns <= column_step) break;
  }
}

// Returns the fastest fit, without blocks if no tile fits or none is faster than most_us.
//   bound(tile): microseconds that no fit of the tile is predicted to beat.
//   fit_tile(tile, buffers, fit): sets everything but the images of a block and the time; returns
//     whether the tile fits. Tried with 1 to most_buffers buffers.
//   predict(fit): sets the time; returns false if the images do not suit the tile.
// Numbers of images are tried that give one, two or four waves of blocks, so that the last blocks
// end together.
template <typename Fit, typename Bound, typename FitTile, typename Predict>
Fit find_fastest_tile(const GroupedTask& task, const DeviceCaps& caps, int64_t row_step,
                      int64_t column_step, int64_t most_buffers, double most_us, const Bound& bound,
                      const FitTile& fit_tile, const Predict& predict) {
  constexpr int64_t kMostWaves = 4;
  Fit best, fit;
  double best_us = most_us;
  bool any_fits = false;
  visit_grouped_tiles(task, row_step, column_step, [&](const GroupedTile& tile) {
    // A tile that is skipped counts as one that fits. Larger ones are skipped as well, or fitted.
    if (any_fits && bound(tile) >= best_us) return true;
    bool fits = false;
    for (int64_t buffers = 1; buffers <= most_buffers; ++buffers) {
      if (!fit_tile(tile, buffers, fit)) break;
      const int64_t tiles = count_grouped_tiles(fit.params);
      for (int64_t waves = 1; waves <= kMostWaves; waves *= 2) {
        const int64_t shares = waves * fit.resident * caps.sm_count / tiles;
        const int64_t images = ceil_div(task.images, std::clamp<int64_t>(shares, 1, task.images));
        fit.params.tile_images = narrow(images);
        fit.blocks = tiles * ceil_div(task.images, images);
        if (fit.blocks < int64_t{1} << 31 && predict(fit)) {
          fits = true;
          if (fit.microseconds < best_us) best = fit, best_us = fit.microseconds;
        }
        if (shares >= task.images) break;
      }
    }
    any_fits |= fits;
    return fits;
  });
  return best;
}

}  // namespace convx
