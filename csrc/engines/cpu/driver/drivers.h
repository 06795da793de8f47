// The drivers of the CPU engines: how each plans a problem and launches it. The gather driver
// computes the forward pass and the input gradient, the weight driver the weight gradient, and the
// channelwise driver depthwise layers in channels_last.
#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/gather_view.h"
#include "core/plan.h"
#include "core/problem.h"
#include "core/task_runner.h"
#include "engines/cpu/driver/staging.h"

namespace convx {

// Bounds of scratch memory and task sizes.
// Slices of the workspace start on cache lines, for float and double alike.
constexpr int64_t kAlignElements = 16;

// A workspace has at most kMaxSharedBytes + kMaxSlotsBytes. Slices are sized for the L2 cache, or
// smaller if many threads share the limit.
constexpr int64_t kMaxSharedBytes = int64_t{15} << 20;
constexpr int64_t kMaxSlotsBytes = int64_t{48} << 20;
constexpr int64_t kMaxSlotBudget = int64_t{1} << 20;
constexpr int64_t kMinSlotBudget = int64_t{384} << 10;

inline int64_t slot_budget(int threads) {
  return std::clamp(kMaxSlotsBytes / std::max(threads, 1), kMinSlotBudget, kMaxSlotBudget);
}

// Slots beyond the limit are not used. Every slice fits at least once.
inline int64_t count_slots(int threads, int64_t slot_bytes) {
  return std::clamp<int64_t>(kMaxSlotsBytes / std::max<int64_t>(slot_bytes, 1), 1,
                             std::max(threads, 1));
}

constexpr int64_t kMaxTileChannels = 256;
constexpr int64_t kMinTileChannels = 32;
constexpr int64_t kMaxTilePixels = 1024;

// Narrower panels, as with 16 vector registers, reload too much (AVX2: 10% slower than the other
// way around, measured on a Cascade Lake core).
constexpr int64_t kMinPanelOverChannels = 4;
constexpr int64_t kMinVectorsOverChannels = 2;
// Fewer terms do not make up for transposing the result.
constexpr int64_t kMinDepthOverChannels = 96;

// A few tasks per thread even out their lengths. Tasks below about 10 us cost more than they gain.
constexpr int64_t kTasksPerThread = 3;
constexpr int64_t kMinTaskProducts = 400000;
constexpr int64_t kMinBatchProducts = 20000;

constexpr int64_t kCacheLineBytes = 64;
constexpr int64_t kFewChannels = 16;
constexpr int64_t kMaxSharedLinePixels = 256;

// A 1x1 convolution without stride and padding computes each pixel by itself. If its rows follow
// each other in memory, they become one long row, which is copied and tiled without remainders.
inline ConvProblem flatten_pointwise(ConvProblem p) {
  const bool pointwise = p.taps() == 1 && p.stride == Hw{} && p.pad == Padding{};
  if (pointwise && p.x_strides.h == p.W * p.x_strides.w && p.y_strides.h == p.Q * p.y_strides.w) {
    p.W = p.Q = p.H * p.W;
    p.H = p.P = 1;
  }
  return p;
}

// Depthwise convolutions of channels_last tensors in cpu_direct, without staging: with one channel
// per group and contiguous channels, vectors run over channels.
//
// Plan::tile: m channels and n rows (of the target lattice, or of y in the weight gradient) per
// task. Plan::split: split-K slices of the rows of all images, in the weight gradient. Tile and
// split depend only on the problem.
struct ChannelwiseGeometry {
  Tile tile;
  int64_t split = 1;
  GatherView view;  // not in the weight gradient

  void describe(Text& out) const;
};

bool is_channelwise(const ConvProblem& problem);

Plan plan_channelwise(const ConvProblem& problem, const DeviceCaps& caps);

void launch_channelwise(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                        const TaskRunner& runner);

// Forward and input gradient on the CPU, for both engines. Every pair of a row phase and a column
// phase of the gather view is the matrix product
//   target[m][pixel] = sum over depth = (channel, tap) of  weights[m][depth] * source[depth][pixel]
// The engines differ in how they read the source matrix: cpu_gemm packs it into dense panels (the
// im2col matrix, one register tile wide), cpu_direct reads the staged image in place.
//
// A task computes Plan::tile.m target channels of tile.n x tile.k lattice points (rows x columns)
// of one phase pair and image, for one group or a few. No result depends on how the tiles are cut.

// Everything that plan and launch must agree on, derived from the problem and the plan's tile.
struct GatherGeometry {
  GatherView view;
  Tile tile;
  bool packed = false;
  DepthBox box;
  AxisLayouts row_layouts;
  AxisLayouts column_layouts;
  int64_t row_chunks = 0;  // chunks of the phase that has the most
  int64_t column_chunks = 0;
  int64_t channel_blocks = 0;  // blocks of tile.m target channels
  int64_t group_batch = 1;     // groups that one task computes in turn
  int64_t depth_blocks = 0;    // blocks of the phase pair that has the most
  // Packed weights of all groups and phases, shared by all tasks. 0 if each task packs its own.
  int64_t shared_weights = 0;
  // Elements of a slot's slice of the workspace: [weights][staged][panel][sums].
  int64_t slot_weights = 0;
  int64_t slot_staged = 0;
  int64_t slot_panel = 0;
  int64_t slot_sums = 0;

  int64_t slot_elements() const { return slot_weights + slot_staged + slot_panel + slot_sums; }
  int64_t count_row_taps(int64_t phase) const { return view.rows[phase].taps.size(); }
  int64_t count_column_taps(int64_t phase) const { return view.columns[phase].taps.size(); }
  void describe(Text& out) const;
};

// Whether a task computes a single target channel with the whole depth, as in depthwise layers.
inline bool multiplies_plane(const GatherGeometry& g) {
  return !g.packed && g.view.target_channels == 1 && g.depth_blocks == 1;
}

// Whether vectors run over target channels and pixels are broadcast. That takes wide registers, two
// whole vectors of channels or more, and enough terms to make up for transposing the result. Other
// products have vectors of pixels and broadcast weights. Every sum has the same order in both.
bool vectors_run_over_channels(const ConvProblem& problem, const GatherGeometry& geometry,
                               int64_t lanes, int64_t widest);

GatherGeometry make_gather_geometry(const ConvProblem& problem, const Tile& tile, bool packed);

// Sets tile, workspace_bytes and geometry.
Plan plan_gather(const ConvProblem& problem, const DeviceCaps& caps, EngineId engine);

void launch_gather(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                   const TaskRunner& runner);

// Weight gradient on the CPU, for both engines:
//   w[k][depth] = sum over pixels of  y[k][pixel] * source[depth][pixel],   depth = (channel, tap)
// The engines differ in the axis of their vectors. cpu_gemm transposes y to [pixel][filter] and
// sums outer products: its vectors are filters. cpu_direct computes dot products of image rows: its
// vectors are pixels, and a single filter fills them. Both read the source from the staged image in
// place.
//
// A task computes Plan::tile.m filters by one box of the depth, over one of Plan::split split-K
// slices of the pixels, in chunks of tile.n x tile.k pixels (rows x columns). Tile and split set
// the order of the additions, so they depend only on the problem, not on the number of threads.

// Everything that plan and launch must agree on, derived from the problem and the plan's tile and
// split.
struct WeightGeometry {
  GatherView view;  // gather view of the forward pass: source x, target y
  Tile tile;
  bool packed = false;
  DepthBox box;
  AxisLayouts row_layouts;
  AxisLayouts column_layouts;
  int64_t row_chunks = 0;
  int64_t column_chunks = 0;
  int64_t chunks = 0;  // chunks of all images
  int64_t filter_blocks = 0;
  int64_t depth_blocks = 0;
  int64_t split = 1;
  int64_t padded_filters = 0;  // tile.m in whole vectors
  int64_t padded_pixels = 0;   // pixels of a chunk, in whole vectors
  // Elements of one task's partial sums, and of all of them: [part][task][sums].
  int64_t task_sums = 0;
  int64_t part_sums = 0;
  // Elements of a slot's slice of the workspace: [sums][y][staged][transposed y].
  int64_t slot_sums = 0;
  int64_t slot_y = 0;
  int64_t slot_staged = 0;
  int64_t slot_panel = 0;

  int64_t slot_elements() const { return slot_sums + slot_y + slot_staged + slot_panel; }
  void describe(Text& out) const;
};

WeightGeometry make_weight_geometry(const ConvProblem& problem, const Tile& tile, int64_t split,
                                    bool packed);

// Sets tile, split, workspace_bytes and geometry.
Plan plan_weight(const ConvProblem& problem, const DeviceCaps& caps, EngineId engine);

void launch_weight(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                   const TaskRunner& runner);

// The geometry of both CPU engines.
struct CpuPlan {
  static constexpr EngineId kEngines[] = {EngineId::kCpuGemm, EngineId::kCpuDirect};

  std::variant<GatherGeometry, WeightGeometry, ChannelwiseGeometry> driver;

  void describe(Text& out) const {
    std::visit([&](const auto& geometry) { geometry.describe(out); }, driver);
  }
};

// The geometry of one driver.
template <typename T>
const T& cpu_geometry_of(const Plan& plan) {
  return std::get<T>(geometry_of<CpuPlan>(plan).driver);
}

// `plan` comes from plan_gather() or plan_weight().
double predict_cpu_us(const ConvProblem& problem, const Plan& plan, const DeviceCaps& caps);

}  // namespace convx
