// The parts of fit_window_shape (window_shape.cpp) that lie in window_layouts.cpp and
// window_costs.cpp.
#pragma once

#include "core/device_caps.h"
#include "core/gather_view.h"
#include "core/problem.h"
#include "engines/cuda/lines/window_shape.h"
#include "planning/gather_axis.h"

namespace convx {

inline constexpr int64_t kLongFilterStageBytes = 36864;

// Whether TMA might read tiles directly from the source, and whether blocks might stream along the
// line, as far as the problem and the operand format say. Tiles need lines in the workspace
// otherwise.
bool may_box_source(const ConvProblem& problem, TensorMath math);
bool may_stream_source(const ConvProblem& problem, TensorMath math);

// Whether TMA can read tiles directly from the source (tile_roles.cuh). Changes a shape whose
// line and tile are laid out, such that a stage consists of boxes; returns false if TMA cannot read
// them.
bool lay_out_boxes(const ConvProblem& problem, WindowShape& shape);

// Whether TMA can store a window with 64 filters as one box. No window may go beyond the end of a
// row.
bool can_store_boxes(const ConvProblem& problem, const WindowShape& shape);

// Whether blocks can stream along the line (line_stream.cuh). Completes a shape whose line and tile
// are laid out; returns false if its blocks cannot stream, or if it does not fit.
bool fit_stream(const ConvProblem& problem, const DeviceCaps& caps, WindowShape& shape);

// Bytes of a tap's filters in a stage.
int64_t window_tap_bytes(const WindowShape& shape);

// Places the source and filter rings of a shape that does not stream. Returns false if they do not
// fit.
bool fit_stages(const ConvProblem& problem, const DeviceCaps& caps, int64_t taps,
                WindowShape& shape);

// Accumulation chain length, for kHalfIeee: reductions of so many steps of 32 bytes.
int find_chain_steps(int64_t steps);

// The most taps of a filter stage of so many bytes at most.
int64_t count_stage_taps(TensorMath math, int filter_groups, int lane_bytes, int chain_steps,
                         int64_t stage_bytes);

// What the cost model needs to know of a phase, whatever its tiles are.
struct PhaseCosts {
  const ConvProblem& problem;
  const DeviceCaps& caps;
  GatherTensors tensors;
  PhaseTraffic traffic;
  double target_values;
  double pixels, taps;     // of the phase
  double element_bytes;    // of the problem's tensors
  bool needs_lines;        // neither may_box_source nor may_stream_source
  bool may_store_runs;     // neighbouring pixels are neighbours in memory, and pairs are aligned
  bool stores_pixels;      // channels are contiguous
  bool stores_odd_pixels;  // channels are contiguous, but pixels are not aligned to 16 bytes
};

PhaseCosts make_phase_costs(const ConvProblem& problem, const DeviceCaps& caps, TensorMath math,
                            const GatherAxis& rows, const GatherAxis& columns);

// What the bounds of all candidates with tiles of one size share. Cycles are those of one tile, or
// of one multiprocessor for the whole phase.
struct TileCosts {
  TensorMath math;
  int lane_bytes, columns, filter_groups;
  int64_t chunks;
  double filter_tiles;          // of all groups
  double plane_bytes;           // of a position's channels, in all components
  double long_groups;           // groups of MMAs with the longest filter stages
  double streamed_groups;       // the same for streaming blocks
  double product_cycles;        // the MMAs at full rate
  double product_issue_cycles;  // issuing them, without their groups
  double step_chains;           // accumulation chains, if they do not follow the groups
  double stage_cycles;          // staging results
  double filter_cycles;         // reading filters that do not stay in shared memory
  double waits;                 // factor on a tile's cycles
  double measure_cycles;        // reading the filters to find their scales
  double pack_cycles;           // see PhaseTraffic::group_cycles
  double store_cycles;          // memory stores all results
  double partial_cycles;        // the same for partial sums, per slice
};

TileCosts make_tile_costs(const PhaseCosts& costs, TensorMath math, int lane_bytes, int columns,
                          int filter_groups);

// The predicted time of a shape. The model is described in window_costs.cpp.
double predict_microseconds(const PhaseCosts& costs, const WindowShape& shape);

// A time that the prediction is never below, for so many split-K slices at least. The shape's line
// and tile are laid out; its boxes, shared memory and workspace are not. Its number of images is
// that of one slice.
double bound_microseconds(const PhaseCosts& costs, const TileCosts& tile, const WindowShape& shape,
                          bool by_boxes, int least_splits);

// A bound for all ways to cut the line into tiles of this size.
double bound_tile_us(const PhaseCosts& costs, const TileCosts& tile);

}  // namespace convx
