// The kernel parameters of cuda_lines, and the plan that holds them with a fitted shape.
#pragma once

#include <cstdint>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "core/plan.h"
#include "engines/cuda/lines/window_shape.h"
#include "planning/half_plan.h"
#include "planning/tensor_params.h"

namespace convx {

// Fields without a comment are described in window_shape.h.
struct WindowParams : TensorParams {
  // The lines in the workspace: [group][chunk][component][line][position][lane_bytes].
  void* lines_memory;
  int64_t line_positions;
  int lines;
  int slabs;          // groups * chunks
  int wide_channels;  // not 0: source channels are contiguous, in aligned units of 16 bytes
  int pitch, rows, strips, strip_columns, row_base, column_base;
  int window_step, second_window, second_offset;
  int pair_rows, column_windows, pairs_per_image;
  int filter_groups, filter_tiles, tiles, splits;
  int segments, segment_length;
  int taps, channels, chunks, chunk_channels, lane_bytes;
  int stage_taps, chain_steps, source_stages, filter_stages, resident;
  int table_offset, staging_offset, source_offset, filter_offset, plane_bytes;
  int lead;       // stages that the first warpgroup starts before the second
  int even_runs;  // not 0: pixels are staged as runs, in pairs aligned to pairs
  int overlap;    // not 0: windows share columns, so that every store covers whole sectors
  int carries;  // not 0: runs as Pace::kCarry; a plan for kCarry without even_runs runs as kStream
  // For streaming blocks.
  int streams, tile_step, reach, ring_positions, stretch, raw_offset, raw_stretches;
  int aligned_rows;  // not 0: source rows are aligned to 16 bytes, for bulk copies
  // For tiles that TMA reads. whole_rows not 0: boxes have whole rows of the line.
  int box_columns, box_rows, boxes, whole_rows;
  int cut_sectors;   // not 0: the parts of a window are divided at sectors
  int wide_target;   // not 0: target channels are contiguous, in aligned units of 16 bytes
  int boxed_target;  // not 0: TMA stores a window's filters as one box

  FastDivmod by_pitch, by_rows, by_strips;
  FastDivmod by_splits, by_filter_tiles_all, by_filter_tiles;
  FastDivmod by_column_windows, by_pairs_per_image, by_pair_rows;
  FastDivmod by_box;  // positions of a box of whole rows

  int tap_positions[kMaxWindowTaps];
  WindowSegment segment[kMaxWindowSegments];
};

struct WindowFit {
  WindowShape shape;
  WindowParams params;  // its pointers are null
};

struct LinesPlan {
  static constexpr EngineId kEngines[] = {EngineId::kCudaLines};

  ConvProblem problem;  // the problem that was fitted; it may be a flattened one
  PhasedPlan<WindowFit> phases;

  void describe(Text& out) const { describe_phases(out, phases); }
};

WindowFit make_window_fit(const ConvProblem& problem, WindowShape shape);

// The kernel parameters of a call. offset: where the call's part of the workspace starts.
WindowParams make_window_params(const ConvProblem& problem, const WindowFit& fit, Buffers buffers,
                                int64_t offset);

}  // namespace convx
