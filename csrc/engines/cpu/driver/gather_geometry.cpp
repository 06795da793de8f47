#include <algorithm>
#include <utility>

#include "core/text.h"
#include "engines/cpu/driver/drivers.h"

namespace convx {
namespace {

int64_t count_most_taps(const std::vector<AxisPhase>& phases) {
  size_t most = 0;
  for (const AxisPhase& phase : phases) most = std::max(most, phase.taps.size());
  return static_cast<int64_t>(most);
}

int64_t count_most_points(const std::vector<AxisPhase>& phases) {
  int64_t most = 0;
  for (const AxisPhase& phase : phases) most = std::max(most, phase.count);
  return most;
}

bool has_neighbouring_channels(const Strides& strides) { return strides.c == 1 && strides.w > 1; }

// Groups that one task computes. Few channels per group make small tasks, so a task takes enough
// groups to be worth its overhead. If the channels of a pixel are contiguous, it takes at least the
// groups that share a cache line.
int64_t choose_group_batch(const ConvProblem& problem, const GatherGeometry& g) {
  const GatherView& view = g.view;
  const int64_t products = g.tile.m * g.tile.n * g.tile.k * view.source_channels * problem.taps();
  int64_t batch = kMinBatchProducts / std::max<int64_t>(products, 1);
  if (has_neighbouring_channels(view.source_strides) ||
      has_neighbouring_channels(view.target_strides)) {
    const int64_t channels = std::max(view.source_channels, view.target_channels);
    batch = std::max(batch, kCacheLineBytes / size_of(problem.dtype) / channels);
  }
  return std::clamp<int64_t>(batch, 1, std::max<int64_t>(problem.groups, 1));
}

// Starts with the largest tile whose slot slice fits the budget and cuts it until there are enough
// tasks.
Tile choose_tile(const ConvProblem& problem, const DeviceCaps& caps, bool packed) {
  const GatherView view = make_gather_view(problem);
  const int64_t budget = slot_budget(caps.threads);
  const int64_t bytes = accumulate_bytes(problem.dtype);
  Tile tile{view.target_channels, count_most_points(view.rows), count_most_points(view.columns)};
  // Blocks of whole vectors, if all channels are.
  const int64_t unit = tile.m % kMaxVectorLanes == 0 ? kMaxVectorLanes : 1;
  tile.m = round_up(ceil_div(tile.m, ceil_div(tile.m, kMaxTileChannels)), unit);
  // A task with many groups should find its pixels in the L1 cache for each of them.
  const bool few_channels = std::max(view.source_channels, view.target_channels) < kFewChannels;
  const bool neighbours = has_neighbouring_channels(view.source_strides) ||
                          has_neighbouring_channels(view.target_strides);
  const int64_t pixels = few_channels && neighbours ? kMaxSharedLinePixels : kMaxTilePixels;
  tile.k = ceil_div(tile.k, ceil_div(tile.k, pixels));
  tile.n = std::min(tile.n, ceil_div(pixels, tile.k));
  const int64_t images =
      problem.N * problem.groups * static_cast<int64_t>(view.rows.size() * view.columns.size());
  auto halve = [](int64_t extent) { return (extent + 1) / 2; };
  while (true) {
    const GatherGeometry geometry = make_gather_geometry(problem, tile, packed);
    const int64_t tasks = images * ceil_div(problem.groups, geometry.group_batch) *
                          geometry.row_chunks * geometry.column_chunks * geometry.channel_blocks;
    const bool too_large = geometry.slot_elements() * bytes > budget;
    const bool too_few = tasks < caps.threads * kTasksPerThread;
    const bool tiny = tile.m * tile.n * tile.k * geometry.box.channels * geometry.box.rows *
                          geometry.box.columns * geometry.depth_blocks <
                      kMinTaskProducts;
    if (!too_large && (!too_few || tiny)) return tile;
    if (tile.n > 1 && (too_large || tile.n * tile.k > 2 * kMaxTileColumns)) {
      tile.n = halve(tile.n);
    } else if (tile.k > kMaxTileColumns) {
      tile.k = halve(tile.k);
    } else if (tile.m > kMinTileChannels) {
      tile.m = round_up(halve(tile.m), unit);
    } else {
      return tile;
    }
  }
}

}  // namespace

bool vectors_run_over_channels(const ConvProblem& problem, const GatherGeometry& g, int64_t lanes,
                               int64_t widest) {
  const int64_t phases = static_cast<int64_t>(g.view.rows.size() * g.view.columns.size());
  const int64_t depth = g.view.source_channels * problem.taps() / phases;
  return !g.packed && widest >= kMinPanelOverChannels && g.view.target_channels % lanes == 0 &&
         g.tile.m % lanes == 0 && g.tile.m >= kMinVectorsOverChannels * lanes &&
         depth >= kMinDepthOverChannels;
}

GatherGeometry make_gather_geometry(const ConvProblem& problem, const Tile& tile, bool packed) {
  GatherGeometry g;
  g.view = make_gather_view(problem);
  g.tile = tile;
  g.packed = packed;
  const GatherView& view = g.view;
  const int64_t rows = count_most_taps(view.rows);
  const int64_t columns = count_most_taps(view.columns);
  g.box = fit_depth_box(view.source_channels, rows, columns, kMaxDepth);
  g.row_layouts = lay_out_phases(view.rows, g.box.rows, tile.n);
  g.column_layouts = lay_out_phases(view.columns, g.box.columns, tile.k);
  g.row_chunks = ceil_div(count_most_points(view.rows), tile.n);
  g.column_chunks = ceil_div(count_most_points(view.columns), tile.k);
  g.channel_blocks = ceil_div(view.target_channels, tile.m);
  g.depth_blocks = ceil_div(view.source_channels, g.box.channels) * ceil_div(rows, g.box.rows) *
                   ceil_div(columns, g.box.columns);

  g.group_batch = choose_group_batch(problem, g);

  const int64_t depth = g.box.channels * g.box.rows * g.box.columns;
  const int64_t all_weights = problem.K * problem.channels_per_group() * problem.taps();
  const bool share = all_weights * accumulate_bytes(problem.dtype) <= kMaxSharedBytes;
  g.shared_weights = share ? round_up(all_weights, kAlignElements) : 0;
  g.slot_weights = share ? 0 : round_up(tile.m * depth, kAlignElements);
  g.slot_staged =
      round_up(count_staged(g.row_layouts, g.column_layouts, g.box.channels, 0), kAlignElements);
  // A packed panel, or a transposed run.
  g.slot_panel = kMaxTileColumns * (packed ? depth + 1 : kMaxTileColumns);
  // Accumulators persist over all depth blocks; with a single block, the columns of one register
  // tile are enough. In-place reads may leave columns unused: at most one vector per row, or the
  // rows' halo.
  int64_t points = kMaxTileColumns;
  if (g.depth_blocks > 1) {
    points = round_up(tile.n * round_up(tile.k, kMaxVectorLanes), kMaxTileColumns);
  }
  if (multiplies_plane(g)) points = round_up(tile.n * tile.k, kAlignElements) + kMaxTileColumns;
  g.slot_sums = tile.m * points;
  return g;
}

void GatherGeometry::describe(Text& out) const {
  out << "tile " << count_text(tile.m, "channel") << " x " << tile.n << "x" << tile.k << " pixels";
  if (group_batch > 1) out << " x " << group_batch << " groups";
  out << ", chunks of " << count_text(box.channels, "channel") << " x " << box.rows << "x"
      << box.columns << " taps" << (packed ? ", packed panels" : ", read in place");
}

Plan plan_gather(const ConvProblem& problem, const DeviceCaps& caps, EngineId engine) {
  const bool packed = engine == EngineId::kCpuGemm;
  Plan plan;
  plan.engine = engine;
  plan.tile = choose_tile(problem, caps, packed);
  GatherGeometry g = make_gather_geometry(problem, plan.tile, packed);
  const int64_t bytes = accumulate_bytes(problem.dtype);
  const int64_t slots = count_slots(caps.threads, g.slot_elements() * bytes);
  plan.workspace_bytes = (g.shared_weights + slots * g.slot_elements()) * bytes;
  plan.geometry = make_geometry(CpuPlan{std::move(g)});
  return plan;
}

}  // namespace convx
