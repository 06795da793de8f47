// The searches for the geometries of the kernels that read rows of NCHW tensors in place: the row
// kernel, and the kernel that TMA boxes feed.
#include <algorithm>

#include "core/arithmetic.h"
#include "engines/cuda/weight_grad/wgrad_fit.h"

namespace convx {
namespace {

// What both searches do.
class InPlaceSearch {
 protected:
  InPlaceSearch(const ConvProblem& problem, const DeviceCaps& caps, OperandForm form,
                double give_up_us)
      : p_(problem), caps_(caps), form_(form), best_us_(give_up_us) {}

  // Sets what depends on the problem alone. Returns false if partial sums do not fit in the
  // workspace.
  bool start(OperandSource source) {
    if (!has_room_for_sums(p_, caps_)) return false;
    base_ = describe_problem(p_);
    flatten_images(p_, base_);
    base_.input_source = base_.gradient_source = source;
    base_.packed_channels = base_.channels;
    return true;
  }

  // Cuts images into runs of at most so many output rows. Returns false if they are too many.
  static bool count_runs(int64_t step_pixels, int64_t rows, WgradGeometry& g) {
    RowTiles& t = g.row_tiles;
    t.segments = static_cast<int>(ceil_div(g.out_width, step_pixels));
    t.run_bands = static_cast<int>(ceil_div(g.out_height, rows));
    t.run_rows = static_cast<int>(ceil_div(g.out_height, t.run_bands));
    t.by_segments = FastDivmod(t.segments), t.by_run_bands = FastDivmod(t.run_bands);
    g.stages_total = g.round_stages = int64_t{g.images} * t.segments * t.run_bands;
    return g.stages_total < int64_t{1} << 30;
  }

  // Split-K whose partial sums go to the workspace: slices that fill the GPU once or twice.
  template <typename Predict>
  void choose_slices(WgradGeometry g, const Predict& predict) {
    visit_slices(caps_, 2, g, [&](const WgradGeometry& sliced) {
      if (sliced.partial_bytes() <= caps_.workspace_limit - 4096) keep(sliced, predict(sliced));
    });
  }

  void keep(const WgradGeometry& g, double microseconds) {
    if (microseconds >= best_us_) return;
    best_us_ = microseconds;
    best_ = WgradFit{form_, g, g.partial_bytes(), microseconds};
    set_block_divisors(best_->geometry);
  }

  const ConvProblem& p_;
  const DeviceCaps& caps_;
  const OperandForm form_;
  WgradGeometry base_;
  double best_us_;  // of best_, or what a geometry must beat
  std::optional<WgradFit> best_;
};

class RowSearch : InPlaceSearch {
  // Rates of an H200, in cycles of a step or of its parts, fitted to timings of the suite
  // (2026-11-18).
  static constexpr double kMmaOverhead = 1.1, kSplitMmaOverhead = 1.35;
  static constexpr double kMemoryBytesPerUs = 3.9e6;
  static constexpr double kRunCycles = 700;
  static constexpr double kStepCycles = 1450,
                          kFloatStepCycles = 2500;  // of a warpgroup, besides its MMAs
  // A step where additions overlap with MMAs (RowTile::has_two_sets), by its instructions; five
  // layers took 1.02 to 1.22 times as long as predicted with it.
  static constexpr double kOverlappedStepCycles = 1800;
  static constexpr double kRowCycles = 1500;  // from loading an input row to having built it
  static constexpr double kLoadCycles = 25;   // of a loader warp, for an instruction

  // Builders load a few pixels behind the last raw row, which they do not use.
  static constexpr int64_t kOverreadBytes = 128;
  static constexpr int kMaxRingRows = 48;  // as many barriers fit in their 1 KiB
  static constexpr int kMaxGradientStages = 6, kInputStages = 3;

  static constexpr int64_t kMaxChannelBytes =
      (int64_t{1} << 31) - 1;  // addresses step by 32-bit strides

 public:
  RowSearch(const ConvProblem& problem, const DeviceCaps& caps, OperandForm form, double give_up_us)
      : InPlaceSearch(problem, caps, form, give_up_us), components_(count_components(form)) {}

  std::optional<WgradFit> run() {
    if (!has_row_kernel(form_) || p_.x_strides.w != 1 || p_.y_strides.w != 1) return {};
    if (!start(OperandSource::kRows)) return {};
    const int bytes = static_cast<int>(size_of(p_.dtype));
    // cp.async copies 4 bytes at least.
    if (find_copy_unit(0, base_.x_strides, bytes) < 4) return {};
    if (find_copy_unit(0, base_.y_strides, bytes) < 4) return {};
    if (std::max(p_.x_strides.c, p_.y_strides.c) * bytes > kMaxChannelBytes) return {};
    base_.flush_stages = 256;
    // seed63 in TF32 takes 3,433 us so, and 3,716 otherwise; in bf16, which reads half as much, it
    // takes 2,428 and 2,343 us (H200, 2026-11-19).
    base_.takes_turns = bytes == 4;
    const auto visit_all = [&](const auto& tiles) {
      for (const RowTile& tile : tiles) visit_tile(tile);
    };
    components_ == 1 ? visit_all(kPlainRowTiles) : visit_all(kSplitRowTiles);
    return best_;
  }

 private:
  void visit_tile(const RowTile& tile) {
    for (const AtomAxis axis : {AtomAxis::kKernelColumns, AtomAxis::kChannels}) {
      for (const int channels : {64, 32, 16}) {
        if (tile.columns % channels != 0) continue;
        if (channels > 16 && p_.C <= channels / 2) continue;
        visit_atoms(tile, axis, channels);
      }
    }
  }

  void visit_atoms(const RowTile& tile, AtomAxis axis, int atom_channels) {
    WgradGeometry g = base_;
    g.columns = tile.columns;
    g.row_tiles.warpgroup_groups = tile.groups;
    g.atom_axis = axis;
    g.atom_channels = atom_channels;
    g.atom_bits = atom_channels == 64 ? 6 : atom_channels == 32 ? 5 : 4;
    g.row_bytes = 2 * atom_channels;
    const int atoms = g.atoms();
    const bool by_columns = axis == AtomAxis::kKernelColumns;
    if (by_columns && (atoms == 1 || 2 * p_.S <= atoms)) return;
    // A narrower tile does as well where the last atom has no channel; the narrowest must do.
    if (!by_columns && tile.columns > kNarrowestColumns && (atoms - 1) * atom_channels >= p_.C) {
      return;
    }
    g.atom_s = by_columns ? 1 : 0;
    g.block_channel_tiles = by_columns ? 1 : atoms;
    const int taps = by_columns ? atoms : 1;
    if (p_.R * ceil_div(p_.S, taps) > kMaxTapGroups) return;
    for (int r = 0; r < p_.R; ++r) {
      for (int s = 0; s < p_.S; s += taps) {
        g.groups[g.group_count++] = {0, 0, static_cast<short>(std::min<int64_t>(taps, p_.S - s)),
                                     static_cast<short>(r), static_cast<short>(s)};
      }
    }
    for (int filter_tiles = 1; filter_tiles <= kRowWarpgroups; ++filter_tiles) {
      if (filter_tiles > 1 && (filter_tiles - 1) * kTileFilters >= p_.K) break;
      for (int sets = 1; filter_tiles * sets <= kRowWarpgroups; ++sets) {
        const int tap_sets = kRowWarpgroups / (filter_tiles * sets);
        const int most = std::min(g.group_count, tap_sets * tile.groups);
        for (int groups = 1; groups <= most; ++groups) {
          g.block_filter_tiles = filter_tiles;
          g.block_tap_groups = groups;
          visit_block(g, sets);
        }
      }
    }
  }

  void visit_block(WgradGeometry& g, int sets) {
    g.row_tiles.channel_sets = 1;
    group_blocks(g);
    count_filter_blocks(p_, g);
    count_channel_blocks(p_, g);
    if (sets > g.channel_blocks) return;
    RowTiles& t = g.row_tiles;
    t.channel_sets = sets;
    t.block_channels = sets * g.block_channel_tiles * g.atom_channels;
    count_channel_blocks(p_, g);
    g.by_grid_minor = FastDivmod(g.slice_blocks());
    span_ = 1;
    for (int block = 0; block < g.group_blocks; ++block) {
      const int rows =
          g.groups[g.block_groups[block + 1] - 1].r - g.groups[g.block_groups[block]].r;
      span_ = std::max(span_, rows * g.dilation_h + 1);
    }
    const int64_t advance = std::min<int64_t>(p_.stride.h, span_);
    t.taps_are_neighbours = p_.stride.w == 1 && p_.dilation.w == 1 && p_.S > 1;
    const int64_t taps = t.taps_are_neighbours ? round_up(p_.S, kBuiltTogether) : p_.S;
    const int64_t width = (kStepPixels - 1) * p_.stride.w + (taps - 1) * p_.dilation.w + 1;
    const int bytes = static_cast<int>(size_of(p_.dtype));
    if (width * bytes > 8192 || span_ + 2 * advance > kMaxRingRows) return;
    t.piece_pixels = static_cast<int>(width);
    t.input_pitch = input_pitch(t.piece_pixels, bytes);
    t.input_stages = kInputStages;
    t.ring_rows = static_cast<int>(span_ + 2 * advance);
    const int64_t fixed = 2048 + kOverreadBytes +
                          t.input_stages * t.block_channels * t.input_pitch +
                          int64_t{components_} * t.ring_rows * t.slot_bytes(g.kernel_columns);
    const int64_t stage = g.block_filter_tiles * kTileFilters * gradient_pitch(bytes);
    g.stages = static_cast<int>(
        std::min<int64_t>(kMaxGradientStages, (caps_.shared_bytes_per_block - fixed) / stage));
    if (caps_.shared_bytes_per_block < fixed || g.stages < 2) return;
    g.shared_bytes = static_cast<int>(fixed + g.stages * stage);
    const StepCost step = cost_step(g);
    if (bound(g, step) >= best_us_) return;
    for (const int rows : {8, 16, 32}) {
      if (count_runs(kStepPixels, rows, g)) {
        choose_slices(g, [&](const WgradGeometry& sliced) { return predict(sliced, step); });
      }
      if (t.run_bands == 1) break;
    }
  }

  // Cycles of a step, and of building an input row.
  struct StepCost {
    double step, row;
  };

  StepCost cost_step(const WgradGeometry& g) const {
    const RowTiles& t = g.row_tiles;
    const bool is_split = components_ > 1;
    const double bytes = static_cast<double>(size_of(p_.dtype));
    const double advance = std::min(g.stride_h, span_);
    // A warpgroup alternates between its MMAs and everything else, another one fills the gaps.
    const bool overlaps = is_split && RowTile{g.columns, t.warpgroup_groups}.has_two_sets() &&
                          g.block_tap_groups % t.warpgroup_groups == 0;
    const double mma = 4.0 * count_mmas(components_) * g.consumers() * t.channel_sets *
                       (g.columns / 2.0 + 2) *
                       (is_split && !overlaps ? kSplitMmaOverhead : kMmaOverhead);
    const double own_cycles = overlaps     ? kOverlappedStepCycles
                              : bytes == 2 ? kStepCycles
                                           : kFloatStepCycles;
    const double chain = own_cycles + mma / g.row_warpgroups();
    // Loaders copy a unit a lane, builders make 8 channels of a tap's column at once.
    const auto load = [&](double rows, double row_bytes, const Strides& strides) {
      const double unit = find_copy_unit(0, strides, static_cast<int>(bytes));
      return kLoadCycles * rows * row_bytes / unit / 32 / kRowLoaderWarps;
    };
    const double filters = double(g.block_filter_tiles) * kTileFilters;
    const double gradient_bytes = kStepPixels * bytes;
    const double load_row = load(t.block_channels, t.input_pitch, g.x_strides);
    const double loads = load(filters, gradient_bytes, g.y_strides) + advance * load_row;
    // Taps that do not share loads take their own; with a stride, a load for each pixel.
    const double alone = t.taps_are_neighbours ? 1 : g.stride_w == 1 ? 10 : 15;
    const double build_column = alone * (is_split ? 90 : bytes == 2 ? 35 : 55);
    const double build = static_cast<double>(ceil_div(t.block_channels, 8 * kRowBuilderWarps)) *
                         (100 + g.kernel_columns * build_column);
    const double row = std::max({build, load_row, kRowCycles});
    const double copy = (filters * gradient_bytes + advance * t.block_channels * t.input_pitch) /
                        kCopyBytesPerCycle;
    return {std::max({mma, chain, loads, advance * row, copy}), row};
  }

  double predict(const WgradGeometry& g, const StepCost& cost) const {
    // A run waits for its first input rows, and reads rows again that the run before had. In TF32
    // and bf16, runs of 8 rows instead of 32 make seed63, kb55, unet_64 and resnext_g32 take 7 to
    // 14% longer, in strict float32 up to 3% (H200, 2026-11-19). resnext_g32 in strict float32
    // prefers them: 241 us instead of 253 in runs of 28 rows.
    const double advance = std::min(g.stride_h, span_);
    const double run = kRunCycles + g.row_tiles.run_rows * cost.step + (span_ - advance) * cost.row;
    const double runs = static_cast<double>(ceil_div(g.stages_total, g.slices));
    const double main_us =
        count_waves(caps_, g) * (fixed_cycles(g) + runs * run) / (kClockGhz * 1e3);
    return std::max(main_us, count_bytes(p_) / kMemoryBytesPerUs) + predict_reduction(p_, g);
  }

  // A lower bound of that for runs of all lengths and all split-K slices: multiprocessors are never
  // idle.
  double bound(const WgradGeometry& g, const StepCost& cost) const {
    const double steps = static_cast<double>(int64_t{g.images} * g.out_height) *
                         static_cast<double>(ceil_div(g.out_width, kStepPixels));
    const double work_us =
        g.slice_blocks() * steps * cost.step / caps_.sm_count / (kClockGhz * 1e3);
    return kBoundFactor *
           (std::max(work_us, count_bytes(p_) / kMemoryBytesPerUs) + predict_sums(p_, g, 1));
  }

  const int components_;
  int span_ = 1;  // input rows that a step of the largest block needs
};

// Whether TMA can read boxes of rows: images, planes and rows do not overlap, and begin at
// multiples of 16 bytes.
bool can_read_rows(const Strides& strides, int64_t width, int64_t bytes) {
  const int64_t unit = 16 / bytes;
  return strides.w == 1 && strides.h % unit == 0 && strides.c % unit == 0 &&
         strides.n % unit == 0 && strides.h >= width && strides.c >= strides.h &&
         strides.n >= strides.c;
}

class BoxSearch : InPlaceSearch {
  // Rates of an H200, fitted to the kernel's times of 16 layers (2026-11-18): 0.94 to 1.2 times as
  // long as predicted, the largest where neither memory nor L2 nor MMAs alone limit it.
  static constexpr double kMmaOverhead = 1.05;
  static constexpr double kStepCycles = 500;  // of a warpgroup, besides its MMAs
  static constexpr double kBoxCycles = 150;   // of TMA, for 64 rows of 128 bytes
  static constexpr double kMemoryBytesPerUs = 4e6;
  // From L2, for values that other blocks read as well: rn_56_1x1 in TF32 takes 1.4 us longer where
  // 102 MB more are read that way (2026-11-18).
  static constexpr double kRereadBytesPerUs = 70e6;
  static constexpr double kBoxBytesPerCycle = 42;  // from L2, by each of all multiprocessors
  // Partial sums are stored after the last step, when some blocks have ended. With the reduction, a
  // megabyte of them costs 0.65 to 0.84 us in rn_56_1x1.
  static constexpr double kPartialBytesPerUs = 2.4e6;
  static constexpr double kStartUs = 2;  // before memory is busy, and after

  // Memory is faster where blocks run less far ahead. kb87pw in TF32 takes 2,938 us with 5 stages
  // of 24 KiB and 3,084 with 8, in bf16 1,470 and 1,525; with 3 stages both take longer (H200,
  // 2026-11-19).
  static constexpr int kMinStages = 4, kMaxStages = 8;
  static constexpr int kStagesBytes = 128 << 10;

 public:
  BoxSearch(const ConvProblem& problem, const DeviceCaps& caps, OperandForm form, double give_up_us)
      : InPlaceSearch(problem, caps, form, give_up_us) {}

  std::optional<WgradFit> run() {
    if (!has_row_boxes(form_) || p_.taps() > 1) return {};
    if (p_.stride.w != 1 || p_.pad.left != 0) return {};
    if (!start(OperandSource::kRowBoxes)) return {};
    const int64_t bytes = size_of(p_.dtype);
    if (!can_read_rows(base_.x_strides, base_.width, bytes)) return {};
    if (!can_read_rows(base_.y_strides, base_.out_width, bytes)) return {};
    WgradGeometry& g = base_;
    g.takes_turns = true;
    const int step_pixels = static_cast<int>(kBoxRowBytes / bytes);
    g.flush_stages = 256 * kStagePositions / step_pixels;
    if (!count_runs(step_pixels, 1, g)) return {};
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
    g.by_grid_minor = FastDivmod(g.slice_blocks());
    constexpr int kFixedBytes = 2048;
    const int stage_bytes = kBoxRowBytes * (filter_tiles * kTileFilters + sets * columns);
    // Leaves so many bytes of shared memory to others.
    const auto set_stages = [&](int64_t others) {
      const int64_t room = caps_.shared_bytes_per_block - kFixedBytes - others;
      const int most = std::clamp(kStagesBytes / stage_bytes, kMinStages, kMaxStages);
      g.stages = static_cast<int>(std::min<int64_t>(most, room / stage_bytes));
      g.shared_bytes = kFixedBytes + g.stages * stage_bytes;
      return g.stages >= 2;
    };
    if (set_stages(g.table_bytes())) choose_clusters(g, stage_bytes);
    if (!set_stages(0)) return;
    choose_slices(g, [&](const WgradGeometry& sliced) { return predict(sliced, stage_bytes); });
  }

  // Split-K whose slices are the blocks of a cluster, and short enough for a chain of accumulators.
  void choose_clusters(WgradGeometry g, int stage_bytes) {
    if (!reserve_store(caps_, g.consumers() * g.row_tiles.channel_sets, g)) return;
    const int64_t most = std::min<int64_t>({kMaxClusterSlices, caps_.sm_count, g.stages_total});
    for (g.slices = 1; g.slices <= most; ++g.slices) {
      if (ceil_div(g.stages_total, g.slices) > g.flush_stages) continue;
      g.by_grid_minor = FastDivmod(g.slices);
      keep(g, predict(g, stage_bytes));
    }
  }

  double predict(const WgradGeometry& g, int stage_bytes) const {
    const int warpgroups = g.block_filter_tiles * g.row_tiles.channel_sets;
    const double mmas = 4 * kMmaOverhead * warpgroups * mma_cycles(g.columns);
    const double boxes = kBoxCycles * stage_bytes / (kBoxRows * kBoxRowBytes);
    const double step =
        std::max({mmas, kStepCycles + mmas / warpgroups, boxes, stage_bytes / kBoxBytesPerCycle});
    const double steps = static_cast<double>(ceil_div(g.stages_total, g.slices));
    const double main_us =
        count_waves(caps_, g) * (fixed_cycles(g) + steps * step) / (kClockGhz * 1e3);
    const double bytes = count_bytes(p_);
    const double copied = static_cast<double>(g.stages_total * g.slice_blocks()) * stage_bytes;
    const double memory_us =
        kStartUs + bytes / kMemoryBytesPerUs + std::max(copied - bytes, 0.0) / kRereadBytesPerUs;
    const double store_us = store_cycles(g) / (kClockGhz * 1e3) +
                            static_cast<double>(g.partial_bytes()) / kPartialBytesPerUs;
    return std::max(main_us + (g.writes_result ? 0 : store_us), memory_us + store_us) +
           predict_reduction(p_, g);
  }
};

}  // namespace

std::optional<WgradFit> fit_rows(const ConvProblem& problem, const DeviceCaps& caps,
                                 OperandForm form, double give_up_us) {
  return RowSearch(problem, caps, form, give_up_us).run();
}

std::optional<WgradFit> fit_row_boxes(const ConvProblem& problem, const DeviceCaps& caps,
                                      OperandForm form, double give_up_us) {
  return BoxSearch(problem, caps, form, give_up_us).run();
}

}  // namespace convx
