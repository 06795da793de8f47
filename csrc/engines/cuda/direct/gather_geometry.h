// The geometry of the gather kernel: its compiled tiles, what the planner chooses among them, and
// the parameters that the kernel reads from constant memory. Plain host code.
#pragma once

#include <cstdint>
#include <vector>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"
#include "planning/gather_axis.h"

namespace convx {

struct LaunchSite;

constexpr int kStrip = 8;  // neighbouring pixels of a thread

// Phases of one axis that one launch covers. An axis with more is launched in slices.
constexpr int kPhasesPerLaunch = 8;

// One phase of one axis: GatherAxis in 32 bits, and the layout of its values in shared memory.
struct AxisParams {
  int count, target_start, target_step;
  int source_step, taps, tap0, tap_step, offset0, offset_step;
  int lanes, classes, period;
  int staged_classes;  // classes of one chunk of taps
  int staged_length;   // rows or columns stored per class
  int tap_prefix;      // taps of the phases before this one
  // Columns only: separately stored strips (1: all strips of a row share one run of columns), and
  // the elements between windows of neighbouring classes, between strips and between rows.
  int staged_strips;
  int class_pitch, strip_pitch, row_pitch;
  bool runs;  // columns only: runs are long, so a warp copies whole rows
  FastDivmod by_staged_classes, by_staged_length, by_staged_strips, by_lanes;
};

// The planner fills in everything but the buffers, and the kernel receives it as it is. It stays
// one plain struct: with base classes the compiler made other code of the kernels that sum in
// chains.
struct GatherParams {
  const void* source;
  // If packed, per phase [group][filter tile][c][row tap][column tap][filter of tile] in the
  // accumulation type. Otherwise w itself.
  const void* weight;
  const void* bias;           // may be null
  float lowest = kUnbounded;  // that y may be
  void* target;
  Strides source_strides, target_strides;
  // Strides of w along groups, target channels, source channels, r and s.
  int64_t weight_group_stride, weight_target_stride, weight_source_stride;
  int64_t weight_r_stride, weight_s_stride;
  int images, first_image;
  int source_h, source_w;
  int source_channels, target_channels;  // per group
  int groups;
  int all_column_taps;                       // taps of all column phases
  int strips, rows, tile_images;             // extents of a pixel tile
  int channels, row_taps, column_taps;       // extents of a chunk of the reduction
  int filter_tiles, strip_tiles, row_tiles;  // blocks along each axis
  int row_phases, column_phases;             // of a launch
  int stage_elements;    // elements of one of the two stages: source tile, then weights
  int weight_offset;     // start of the weights in a stage, behind the source of any phase
  int table_offset;      // bytes of shared memory before the table of positions
  int transpose_offset;  // bytes before the buffer of the epilogue's transpose
  int chain_limit;       // terms of an accumulation chain (kChainLimit); 0: one chain
  bool packed;
  bool channel_fastest;  // the source is channels_last, so neighbouring threads copy channels
  FastDivmod by_strips, by_rows;
  AxisParams row[kPhasesPerLaunch];
  AxisParams column[kPhasesPerLaunch];
};

// A tile of the kernel (GatherTile).
struct GatherConfig {
  int per_thread, lane_groups, warps_k, warps_p;
  bool float32_only;  // the other dtypes have fewer tiles, to limit the number of kernels

  constexpr bool operator==(const GatherConfig&) const = default;
  constexpr int filters() const { return per_thread * lane_groups * warps_k; }
  constexpr int strips() const { return 32 / lane_groups * warps_p; }
  constexpr int threads() const { return 32 * warps_k * warps_p; }
};

// The tiles that kernels are compiled for. Plans hold an index into this list.
inline constexpr GatherConfig kGatherConfigs[] = {
    {8, 4, 2, 4, true},   // 64 filters x 256 pixels
    {8, 4, 4, 2, true},   // 128 x 128
    {8, 4, 2, 2, false},  // 64 x 128: small grids
    {8, 4, 1, 4, false},  // 32 x 256
    {8, 2, 1, 4, true},   // 16 x 512
    {4, 1, 1, 4, false},  // 4 x 1024: few filters per group
    {1, 1, 1, 4, false},  // 1 x 1024: depthwise
};
inline constexpr int kGatherConfigCount = sizeof(kGatherConfigs) / sizeof(kGatherConfigs[0]);

class Text;

// A plan of the forward pass or of the input gradient.
struct GatherShape {
  int config = -1;  // index into kGatherConfigs
  int64_t image_tiles = 1;
  int64_t shared_bytes = 0;
  int64_t packed_bytes = 0;  // size of packed weights, whether or not they are used
  int64_t least_run = 0;     // columns from which on a warp copies whole rows
  std::vector<GatherAxis> rows_axes, columns_axes;
  double microseconds = 0;
  GatherParams params{};  // without buffers; once completed, with the phases of the first launch

  void describe(Text& out) const;
};

// Without a search, a time that no tile is predicted to beat.
double bound_gather_us(const ConvProblem& problem, const DeviceCaps& caps);

// Returns the tile with the shortest predicted time.
GatherShape fit_gather_shape(const ConvProblem& problem, const DeviceCaps& caps);

// Fills in what the launch needs besides the tile. packed: the workspace has shape.packed_bytes for
// packed weights.
GatherShape complete_gather(const ConvProblem& problem, GatherShape shape, bool packed);

// Set the phases of one launch: as many as it covers, from `first` on. Unless `first` is 0, the
// previous call must have set the phases just before it.
void set_row_phases(GatherParams& params, const GatherShape& shape, int64_t first);
void set_column_phases(GatherParams& params, const GatherShape& shape, int64_t first);

}  // namespace convx
