#include <algorithm>
#include <utility>

#include "core/text.h"
#include "engines/cpu/driver/drivers.h"

namespace convx {
namespace {

constexpr int64_t kSlotBudget = int64_t{768} << 10;
constexpr int64_t kMaxTileFilters = 64;
// The transposed y of a chunk is read in order from the L2 cache: 640 pixels by 64 filters are
// 160 KiB. Shorter chunks stage more rows twice, where the kernel reaches beyond them.
constexpr int64_t kMaxPackedPixels = 640;
constexpr int64_t kWantedTasks = 64;
constexpr int64_t kWantedTasksBeforeSplit = 16;
constexpr int64_t kMinDepth = 96;
// With this many pixels, writing and adding a slice costs a tenth of computing it.
constexpr int64_t kMinPixelsPerPart = 2048;

// Boxes become smaller if the weights alone give few tasks.
DepthBox choose_box(const ConvProblem& p, int64_t filter_blocks) {
  DepthBox box;
  for (int64_t depth = kMaxDepth; depth >= kMinDepth; depth /= 2) {
    box = fit_depth_box(p.channels_per_group(), p.R, p.S, depth);
    const int64_t blocks = ceil_div(p.channels_per_group(), box.channels) *
                           ceil_div(p.R, box.rows) * ceil_div(p.S, box.columns);
    if (p.groups * filter_blocks * blocks >= kWantedTasksBeforeSplit) break;
  }
  return box;
}

Tile choose_tile(const ConvProblem& problem, bool packed) {
  Tile tile{problem.filters_per_group(), problem.P, problem.Q};
  tile.m = ceil_div(tile.m, ceil_div(tile.m, kMaxTileFilters));
  const int64_t pixels = packed ? kMaxPackedPixels : kMaxTilePixels;
  tile.k = ceil_div(tile.k, ceil_div(tile.k, pixels));
  tile.n = ceil_div(tile.n, ceil_div(tile.n, std::max<int64_t>(pixels / tile.k, 1)));
  const int64_t bytes = accumulate_bytes(problem.dtype);
  while (make_weight_geometry(problem, tile, 1, packed).slot_elements() * bytes > kSlotBudget) {
    if (tile.n > 1) {
      tile.n = ceil_div(tile.n, 2);
    } else if (tile.k > kMaxTileColumns) {
      tile.k = ceil_div(tile.k, 2);
    } else {
      break;
    }
  }
  return tile;
}

}  // namespace

WeightGeometry make_weight_geometry(const ConvProblem& problem, const Tile& tile, int64_t split,
                                    bool packed) {
  ConvProblem forward = problem;
  forward.pass = Pass::kForward;
  WeightGeometry g;
  g.view = make_gather_view(forward);
  g.tile = tile;
  g.packed = packed;
  g.split = split;
  g.filter_blocks = ceil_div(problem.filters_per_group(), tile.m);
  g.box = choose_box(problem, g.filter_blocks);
  g.row_layouts = lay_out_phases(g.view.rows, g.box.rows, tile.n);
  g.column_layouts = lay_out_phases(g.view.columns, g.box.columns, tile.k);
  g.row_chunks = ceil_div(problem.P, tile.n);
  g.column_chunks = ceil_div(problem.Q, tile.k);
  g.chunks = problem.N * g.row_chunks * g.column_chunks;
  g.depth_blocks = ceil_div(problem.channels_per_group(), g.box.channels) *
                   ceil_div(problem.R, g.box.rows) * ceil_div(problem.S, g.box.columns);
  g.padded_filters = round_up(tile.m, kMaxVectorLanes);
  g.padded_pixels = round_up(tile.n * tile.k, kMaxVectorLanes);

  const int64_t depth = g.box.channels * g.box.rows * g.box.columns;
  g.task_sums = round_up((packed ? g.padded_filters : tile.m) * depth, kAlignElements);
  g.part_sums =
      split > 1 ? split * problem.groups * g.filter_blocks * g.depth_blocks * g.task_sums : 0;
  g.slot_sums = g.task_sums;
  const int64_t staged = count_staged(g.row_layouts, g.column_layouts, 1, tile.k);
  g.slot_y = packed ? g.padded_filters * g.padded_pixels
                    : round_up(tile.m * staged + kStagingSlack, kAlignElements);
  g.slot_staged = round_up(g.box.channels * staged, kAlignElements);
  g.slot_panel = packed ? g.padded_filters * g.padded_pixels : 0;
  return g;
}

void WeightGeometry::describe(Text& out) const {
  out << "tile " << count_text(tile.m, "filter") << " x " << count_text(box.channels, "channel")
      << " x " << box.rows << "x" << box.columns << " taps, chunks of " << tile.n << "x" << tile.k
      << " pixels";
  describe_split(out, split);
  out << (packed ? ", outer products" : ", dot products");
}

Plan plan_weight(const ConvProblem& problem, const DeviceCaps& caps, EngineId engine) {
  const bool packed = engine == EngineId::kCpuGemm;
  Plan plan;
  plan.engine = engine;
  plan.tile = choose_tile(problem, packed);
  WeightGeometry g = make_weight_geometry(problem, plan.tile, 1, packed);
  const int64_t bytes = accumulate_bytes(problem.dtype);
  const int64_t tasks = problem.groups * g.filter_blocks * g.depth_blocks;
  const int64_t pixels = problem.N * problem.P * problem.Q;
  plan.split = std::min({ceil_div(kWantedTasks, tasks), g.chunks, pixels / kMinPixelsPerPart,
                         kMaxSharedBytes / (tasks * g.task_sums * bytes)});
  plan.split = std::max<int64_t>(plan.split, 1);
  g = make_weight_geometry(problem, plan.tile, plan.split, packed);
  const int64_t slots = count_slots(caps.threads, g.slot_elements() * bytes);
  plan.workspace_bytes = (g.part_sums + slots * g.slot_elements()) * bytes;
  plan.geometry = make_geometry(CpuPlan{std::move(g)});
  return plan;
}

}  // namespace convx
