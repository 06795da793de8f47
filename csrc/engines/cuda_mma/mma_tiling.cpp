#include "engines/cuda_mma/mma_tiling.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "engines/cuda_mma/mma_costs.h"

namespace convx {
namespace {

// Tiles that kernels are compiled for. The launch functions have the same list.
constexpr PixelTiling::Tile kTiles[] = {
    {64, 2, false}, {128, 2, false}, {64, 1, false}, {32, 2, false}, {64, 2, true}};
constexpr PixelTiling::Tile kIeeeTiles[] = {
    {64, 2, false}, {64, 1, false}, {32, 2, false}, {64, 2, true}};

// Approximate steps per block barrier, and stages of the filter ring; the best pipeline first.
struct Pipeline {
  int steps, stages;
};
constexpr Pipeline kPipelines[] = {{8, 3}, {8, 2}, {4, 3}, {4, 2}, {2, 3}, {2, 2}, {1, 2}};

void lay_out_rings(const Pipeline& pipeline, PixelShape& shape) {
  // Stages per group of chunks.
  const int64_t parts = std::max(1, shape.steps / pipeline.steps);
  shape.stage_chunks =
      static_cast<int>(std::clamp<int64_t>(ceil_div(pipeline.steps, shape.steps), 1, shape.chunks));
  shape.stage_steps = static_cast<int>(ceil_div(shape.stage_chunks * shape.steps, parts));
  shape.filter_stages = pipeline.stages;
  // While a stage is multiplied, stages - 1 more are loaded or in flight.
  shape.source_stages = static_cast<int>(
      std::min(ceil_div(pipeline.stages - 1,
                        ceil_div(shape.stage_chunks * shape.steps, int64_t{shape.stage_steps})) +
                   1,
               ceil_div(shape.chunks, int64_t{shape.stage_chunks})));
}

bool fit_shared_memory(const ConvProblem& problem, const DeviceCaps& caps, PixelShape& shape) {
  const int64_t window = shape.window_pixels();
  const int64_t tables =
      4 * (shape.folded ? int64_t{shape.steps} * 4 * gathered_depth(shape.math) : 0) +
      4 * (2 * window + shape.entries());
  shape.source_offset = static_cast<int>(round_up(tables, 128));
  // The epilogue stages accumulators where the rings were.
  shape.staging_offset = shape.source_offset;
  const int64_t staging = 2 * kStoreFilters * staging_elements(static_cast<int>(window), 4) * 4;
  const int64_t step = shape.step_bytes();
  shape.packed_bytes =
      problem.groups * shape.filter_tiles * int64_t{shape.chunks} * shape.steps * step;
  if (shape.packed_bytes > caps.workspace_limit) return false;

  constexpr int64_t kReserved = 1024;  // per block, reserved by CUDA
  const int64_t multiprocessor = caps.shared_bytes_per_block + kReserved;
  for (int blocks = count_mma_blocks(shape.math, shape.filters, shape.blocks); blocks >= 1;
       --blocks) {
    for (const Pipeline& pipeline : kPipelines) {
      lay_out_rings(pipeline, shape);
      const int64_t sources =
          int64_t{shape.source_stages} * shape.stage_chunks * shape.source_stage_bytes;
      const int64_t filters = int64_t{shape.filter_stages} * shape.stage_steps * step;
      const int64_t bytes = shape.source_offset + std::max(sources + filters, staging);
      if (bytes > multiprocessor / blocks - kReserved) continue;
      shape.filter_offset = static_cast<int>(shape.source_offset + sources);
      shape.shared_bytes = static_cast<int>(bytes);
      shape.blocks_per_sm = blocks;
      return true;
    }
  }
  return false;
}

}  // namespace

PixelTiling make_mma_tiling(TensorMath math) {
  if (math == TensorMath::kIeee)
    return {math, kIeeeTiles, fit_shared_memory, predict_mma_microseconds};
  return {math, kTiles, fit_shared_memory, predict_mma_microseconds};
}

}  // namespace convx
