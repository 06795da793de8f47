#include "engines/cuda_pixels/pixel_tiling.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "engines/cuda_pixels/pixel_costs.h"

namespace convx {
namespace {

constexpr int kTileAlignment = 1024;
constexpr int kMaxFilterStages = 16;
constexpr int kMaxSourceStages = 4;
constexpr int64_t kFilterStageBytes = 16384;  // target size of a stage of filters

// Tiles that kernels are compiled for. The launch functions have the same list.
constexpr PixelTiling::Tile kTiles[] = {{64, 4, false},  {64, 2, false}, {128, 2, false},
                                        {256, 1, false}, {64, 4, true},  {96, 2, true},
                                        {128, 2, true}};
constexpr PixelTiling::Tile kIeeeTiles[] = {{64, 2, false},      {128, 1, false},
                                            {64, 2, true},       {96, 1, true},
                                            {64, 2, true, true}, {96, 1, true, true}};
constexpr PixelTiling::Tile kHalfTf32Tiles[] = {{64, 4, true, true}, {96, 2, true, true}};
constexpr PixelTiling::Tile kHalfIeeeTiles[] = {{64, 2, true, true}, {96, 1, true, true}};

bool fit_shared_memory(const ConvProblem& problem, const DeviceCaps& caps, PixelShape& shape) {
  const int64_t window = shape.window_pixels();
  const int64_t tables =
      4 * (int64_t{shape.steps} * 4 * shape.table_depth() + 2 * window + shape.entries());
  shape.staging_offset = static_cast<int>(round_up(kPixelBarrierBytes + tables, 128));
  const int64_t staging = 2 * kStoreFilters * staging_elements(static_cast<int>(window), 4) * 4;
  shape.source_offset = static_cast<int>(round_up(shape.staging_offset + staging, 128));
  const int64_t stage = shape.source_stage_bytes;
  const int64_t step = shape.step_bytes();
  const int64_t stages_per_chunk =
      ceil_div(shape.steps, std::max<int64_t>(1, kFilterStageBytes / step));
  shape.stage_steps = static_cast<int>(ceil_div(shape.steps, stages_per_chunk));
  const int64_t filter_stage = shape.stage_steps * step;
  const int64_t all_filter_stages = ceil_div(shape.steps, shape.stage_steps) * shape.chunks;
  const bool one_tile = shape.filter_tiles * problem.groups == 1;

  const int64_t room = caps.shared_bytes_per_block - shape.source_offset - 2 * kTileAlignment;
  const int64_t left = room - 2 * stage;
  if (left < 2 * filter_stage) return false;
  shape.resident =
      one_tile && all_filter_stages <= std::min<int64_t>(kMaxFilterStages, left / filter_stage);
  int64_t filter_stages = shape.resident ? all_filter_stages : 2;
  const int64_t source_stages =
      std::min<int64_t>(kMaxSourceStages, (room - filter_stages * filter_stage) / stage);
  if (!shape.resident) {
    filter_stages = std::min<int64_t>(8, (room - source_stages * stage) / filter_stage);
  }
  shape.source_stages = static_cast<int>(source_stages);
  shape.filter_stages = static_cast<int>(filter_stages);
  shape.filter_offset =
      static_cast<int>(round_up(shape.source_offset + source_stages * stage, kTileAlignment));
  shape.shared_bytes =
      static_cast<int>(shape.filter_offset + filter_stages * filter_stage + kTileAlignment);
  shape.packed_bytes =
      problem.groups * shape.filter_tiles * int64_t{shape.chunks} * shape.steps * step;
  return shape.shared_bytes <= caps.shared_bytes_per_block &&
         shape.packed_bytes <= caps.workspace_limit;
}

}  // namespace

PixelTiling make_pixel_tiling(TensorMath math) {
  const auto with = [&](std::span<const PixelTiling::Tile> tiles) {
    return PixelTiling{math, tiles, fit_shared_memory, predict_microseconds};
  };
  return math == TensorMath::kIeee       ? with(kIeeeTiles)
         : math == TensorMath::kHalfTf32 ? with(kHalfTf32Tiles)
         : math == TensorMath::kHalfIeee ? with(kHalfIeeeTiles)
                                         : with(kTiles);
}

}  // namespace convx
