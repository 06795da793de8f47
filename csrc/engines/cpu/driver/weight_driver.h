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
#pragma once

#include <cstdint>

#include "core/device_caps.h"
#include "core/gather_view.h"
#include "core/plan.h"
#include "core/task_runner.h"
#include "engines/cpu/driver/staging.h"

namespace convx {

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

}  // namespace convx
