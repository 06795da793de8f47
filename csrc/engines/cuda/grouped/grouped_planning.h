// What the planners of the family share: the tensors' extents, and the search for tiles of both
// NCHW kernels. Plain host code.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "engines/cuda/grouped/grouped_geometry.h"
#include "planning/staged_rows.h"

namespace convx {

inline int narrow(int64_t value) { return static_cast<int>(value); }

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

// Returns the fastest fit, without blocks if no tile fits.
//   fit_tile(tile, buffers, fit): sets everything but the images of a block and the time; returns
//     whether the tile fits. Tried with 1 to most_buffers buffers.
//   predict(fit): sets the time; returns false if the images do not suit the tile.
// Numbers of images are tried that give one, two or four waves of blocks, so that the last blocks
// end together.
template <typename Fit, typename FitTile, typename Predict>
Fit find_fastest_tile(const GroupedTask& task, const DeviceCaps& caps, int64_t row_step,
                      int64_t column_step, int64_t most_buffers, const FitTile& fit_tile,
                      const Predict& predict) {
  constexpr int64_t kMostWaves = 4;
  Fit best;
  visit_grouped_tiles(task, row_step, column_step, [&](const GroupedTile& tile) {
    bool fits = false;
    for (int64_t buffers = 1; buffers <= most_buffers; ++buffers) {
      Fit fit;
      if (!fit_tile(tile, buffers, fit)) break;
      const int64_t tiles = count_grouped_tiles(fit.params);
      for (int64_t waves = 1; waves <= kMostWaves; waves *= 2) {
        const int64_t shares = waves * fit.resident * caps.sm_count / tiles;
        const int64_t images = ceil_div(task.images, std::clamp<int64_t>(shares, 1, task.images));
        fit.params.tile_images = narrow(images);
        fit.blocks = tiles * ceil_div(task.images, images);
        if (fit.blocks < int64_t{1} << 31 && predict(fit)) {
          fits = true;
          if (best.blocks == 0 || fit.microseconds < best.microseconds) best = fit;
        }
        if (shares >= task.images) break;
      }
    }
    return fits;
  });
  return best;
}

}  // namespace convx
