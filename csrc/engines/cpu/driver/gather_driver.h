// Forward and input gradient on the CPU, for both engines. Every pair of a row phase and a column
// phase of the gather view is the matrix product
//   target[m][pixel] = sum over depth = (channel, tap) of  weights[m][depth] * source[depth][pixel]
// The engines differ in how they read the source matrix: cpu_gemm packs it into dense panels (the
// im2col matrix, one register tile wide), cpu_direct reads the staged image in place.
//
// A task computes Plan::tile.m target channels of tile.n x tile.k lattice points (rows x columns)
// of one phase pair and image, for one group or a few. No result depends on how the tiles are cut.
#pragma once

#include <cstdint>

#include "core/device_caps.h"
#include "core/gather_view.h"
#include "core/plan.h"
#include "core/task_runner.h"
#include "engines/cpu/driver/staging.h"

namespace convx {

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
  void describe(Text& out) const;
};

// Whether a task computes a single target channel with the whole depth, as in depthwise layers.
inline bool multiplies_plane(const GatherGeometry& g) {
  return !g.packed && g.view.target_channels == 1 && g.depth_blocks == 1;
}

// Whether vectors run over target channels and pixels are broadcast. That takes whole vectors of
// channels, as many as the widest panel has, and enough terms to make up for transposing the
// result. Other products have vectors of pixels and broadcast weights. Every sum has the same order
// in both.
bool vectors_run_over_channels(const ConvProblem& problem, const GatherGeometry& geometry,
                               int64_t lanes, int64_t widest);

GatherGeometry make_gather_geometry(const ConvProblem& problem, const Tile& tile, bool packed);

// Sets tile, workspace_bytes and geometry.
Plan plan_gather(const ConvProblem& problem, const DeviceCaps& caps, EngineId engine);

void launch_gather(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                   const TaskRunner& runner);

}  // namespace convx
