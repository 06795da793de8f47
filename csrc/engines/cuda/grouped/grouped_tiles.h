// The tiles from which both NCHW kernels choose. Plain host code.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/arithmetic.h"
#include "engines/cuda/grouped/grouped_params.h"
#include "planning/staged_rows.h"

namespace convx {

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

// Calls consider(images per block) for numbers that give one, two or four waves of blocks, so that
// the last blocks end together.
template <typename Consider>
void visit_image_shares(int64_t images, int64_t tiles, int64_t blocks_at_once,
                        const Consider& consider) {
  constexpr int64_t kMostWaves = 4;  // waves of blocks
  for (int64_t waves = 1; waves <= kMostWaves; waves *= 2) {
    const int64_t shares = waves * blocks_at_once / tiles;
    consider(ceil_div(images, std::clamp<int64_t>(shares, 1, images)));
    if (shares >= images) break;
  }
}

}  // namespace convx
