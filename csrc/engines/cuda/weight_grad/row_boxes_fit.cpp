// The search for the geometry of the kernel that TMA boxes of rows feed.
#include <algorithm>

#include "core/arithmetic.h"
#include "engines/cuda/weight_grad/wgrad_cost.h"
#include "engines/cuda/weight_grad/wgrad_fit.h"

namespace convx {
namespace {

// Rates of an H200, fitted to the kernel's times of 16 layers (2026-11-18): 0.94 to 1.2 times as
// long as predicted, the largest where neither memory nor L2 nor MMAs alone limit it.
constexpr double kMmaOverhead = 1.05;
constexpr double kStepCycles = 500;  // of a warpgroup, besides its MMAs
constexpr double kBoxCycles = 150;   // of TMA, for 64 rows of 128 bytes
constexpr double kMemoryBytesPerUs = 4e6;
constexpr double kRereadBytesPerUs = 20e6;  // for values that other blocks read as well, from L2
constexpr double kBoxBytesPerCycle = 42;    // from L2, by each of all multiprocessors
// Partial sums are stored after the last step, when some blocks have ended.
constexpr double kPartialBytesPerUs = 5e6;
constexpr double kStartUs = 2;  // before memory is busy, and after

constexpr int kMaxStages = 8;

// Whether TMA can read boxes of rows: images, planes and rows do not overlap, and begin at
// multiples of 16 bytes.
bool can_read_rows(const Strides& strides, int64_t width, int64_t bytes) {
  const int64_t unit = 16 / bytes;
  return strides.w == 1 && strides.h % unit == 0 && strides.c % unit == 0 &&
         strides.n % unit == 0 && strides.h >= width && strides.c >= strides.h &&
         strides.n >= strides.c;
}

class BoxSearch {
 public:
  BoxSearch(const ConvProblem& problem, const DeviceCaps& caps, OperandForm form)
      : p_(problem), caps_(caps), form_(form) {}

  std::optional<WgradFit> run() {
    if (!has_row_boxes(form_) || p_.taps() > 1) return {};
    if (p_.stride.w != 1 || p_.pad.left != 0) return {};
    if (!has_room_for_sums(p_, caps_)) return {};
    base_ = describe_problem(p_);
    flatten_images(p_, base_);
    const int64_t bytes = size_of(p_.dtype);
    if (!can_read_rows(base_.x_strides, base_.width, bytes)) return {};
    if (!can_read_rows(base_.y_strides, base_.out_width, bytes)) return {};
    WgradGeometry& g = base_;
    g.input_source = g.gradient_source = OperandSource::kRowBoxes;
    g.packed_channels = g.channels;
    const int step_pixels = static_cast<int>(kBoxRowBytes / bytes);
    g.flush_stages = 256 * kStagePositions / step_pixels;
    g.row_tiles.segments = static_cast<int>(ceil_div(g.out_width, step_pixels));
    g.row_tiles.run_rows = 1, g.row_tiles.run_bands = g.out_height;
    g.row_tiles.by_segments = FastDivmod(g.row_tiles.segments);
    g.row_tiles.by_run_bands = FastDivmod(g.row_tiles.run_bands);
    g.stages_total = g.round_stages = int64_t{g.images} * g.row_tiles.segments * g.out_height;
    if (g.stages_total >= int64_t{1} << 30) return {};
    g.atom_axis = AtomAxis::kChannels;
    g.atom_channels = kBoxRows, g.row_bytes = 2 * kBoxRows, g.atom_bits = 6;
    g.groups[0] = {.shift = 0, .residue = 0, .taps = 1, .r = 0, .s = 0};
    g.group_count = g.block_tap_groups = 1;
    group_blocks(g);
    for (const int columns : kBoxColumns) {
      for (int filter_tiles = 1; filter_tiles <= kBoxWarpgroups; ++filter_tiles) {
        if ((filter_tiles - 1) * kTileFilters >= p_.K) break;
        for (int sets = 1; filter_tiles * sets <= kBoxWarpgroups; ++sets) {
          visit_block(columns, filter_tiles, sets);
        }
      }
    }
    return best_;
  }

 private:
  void visit_block(int columns, int filter_tiles, int sets) {
    WgradGeometry g = base_;
    g.columns = columns;
    g.block_filter_tiles = filter_tiles;
    g.block_channel_tiles = columns / kBoxRows;
    count_filter_blocks(p_, g);
    count_channel_blocks(p_, g);
    if (sets > g.channel_blocks || (columns > kNarrowestColumns && p_.C <= columns / 2)) return;
    g.row_tiles.channel_sets = sets;
    g.row_tiles.block_channels = sets * columns;
    count_channel_blocks(p_, g);
    constexpr int kFixedBytes = 2048;
    const int stage_bytes = kBoxRowBytes * (filter_tiles * kTileFilters + sets * columns);
    // Leaves so many bytes of shared memory to others.
    const auto set_stages = [&](int64_t others) {
      const int64_t room = caps_.shared_bytes_per_block - kFixedBytes - others;
      g.stages = static_cast<int>(std::min<int64_t>(kMaxStages, room / stage_bytes));
      g.shared_bytes = kFixedBytes + g.stages * stage_bytes;
      return g.stages >= 2;
    };
    if (set_stages(g.table_bytes())) choose_clusters(g, stage_bytes);
    if (set_stages(0)) choose_slices(g, stage_bytes);
  }

  // Split-K whose slices are the blocks of a cluster, and short enough for a chain of accumulators.
  void choose_clusters(WgradGeometry g, int stage_bytes) {
    if (!reserve_store(caps_, g.consumers() * g.row_tiles.channel_sets, g)) return;
    const int64_t most = std::min<int64_t>({kMaxClusterSlices, caps_.sm_count, g.stages_total});
    for (g.slices = 1; g.slices <= most; ++g.slices) {
      if (ceil_div(g.stages_total, g.slices) > g.flush_stages) continue;
      g.by_grid_minor = FastDivmod(g.slices);
      consider(g, stage_bytes);
    }
  }

  // Split-K whose partial sums go to the workspace: slices that fill the GPU once or twice.
  void choose_slices(WgradGeometry g, int stage_bytes) {
    for (int waves = 0; waves <= 2; ++waves) {
      const int64_t wanted = waves == 0 ? 1 : int64_t{waves} * caps_.sm_count / g.slice_blocks();
      if (wanted < 1 || (waves > 0 && wanted == 1)) continue;
      g.slices = static_cast<int>(std::min(wanted, g.stages_total));
      if (g.partial_bytes() <= caps_.workspace_limit - 4096) consider(g, stage_bytes);
    }
  }

  void consider(const WgradGeometry& g, int stage_bytes) {
    const double us = predict(g, stage_bytes);
    if (best_ && best_->microseconds <= us) return;
    best_ = WgradFit{
        .form = form_, .geometry = g, .workspace_bytes = g.partial_bytes(), .microseconds = us};
  }

  double predict(const WgradGeometry& g, int stage_bytes) const {
    const int warpgroups = g.block_filter_tiles * g.row_tiles.channel_sets;
    // Issue, or what shared memory delivers of both operands.
    const double mma = 4 + std::max(g.columns / 2.0, 16 + g.columns / 4.0);
    const double mmas = 4 * kMmaOverhead * warpgroups * mma;
    const double boxes = kBoxCycles * stage_bytes / (kBoxRows * kBoxRowBytes);
    const double step =
        std::max({mmas, kStepCycles + mmas / warpgroups, boxes, stage_bytes / kBoxBytesPerCycle});
    const double steps = static_cast<double>(ceil_div(g.stages_total, g.slices));
    const double waves = static_cast<double>(
        g.writes_result ? ceil_div(int64_t{g.slice_blocks()}, count_clusters(caps_, g.slices))
                        : ceil_div(int64_t{g.slice_blocks()} * g.slices, int64_t{caps_.sm_count}));
    const double stores = g.writes_result ? store_cycles(g) : 0;
    const double block = g.writes_result ? kStartCycles + stores : kBlockCycles;
    const double main_us = waves * (block + steps * step) / (kClockGhz * 1e3);
    const double bytes = count_bytes(p_);
    const double copied = static_cast<double>(g.stages_total * g.slice_blocks()) * stage_bytes;
    const double memory_us =
        kStartUs + bytes / kMemoryBytesPerUs + std::max(copied - bytes, 0.0) / kRereadBytesPerUs;
    const double store_us =
        stores / (kClockGhz * 1e3) + static_cast<double>(g.partial_bytes()) / kPartialBytesPerUs;
    return std::max(main_us + (g.writes_result ? 0 : store_us), memory_us + store_us) +
           predict_reduction(p_, g);
  }

  const ConvProblem& p_;
  const DeviceCaps& caps_;
  OperandForm form_;
  WgradGeometry base_;
  std::optional<WgradFit> best_;
};

}  // namespace

std::optional<WgradFit> fit_row_boxes(const ConvProblem& problem, const DeviceCaps& caps,
                                      OperandForm form) {
  return BoxSearch(problem, caps, form).run();
}

}  // namespace convx
