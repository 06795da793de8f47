// The search for the geometry of the row kernel.
#include <algorithm>

#include "core/arithmetic.h"
#include "engines/cuda/weight_grad/wgrad_cost.h"
#include "engines/cuda/weight_grad/wgrad_fit.h"

namespace convx {
namespace {

// Rates of an H200, in cycles of a step or of its parts, fitted to timings of the suite
// (2026-11-18).
constexpr double kMmaOverhead = 1.1, kSplitMmaOverhead = 1.35;
constexpr double kMemoryBytesPerUs = 3.9e6;
constexpr double kRunCycles = 700;
constexpr double kStepCycles = 1450, kFloatStepCycles = 2500;  // of a warpgroup, besides its MMAs
// The same where additions overlap with MMAs (RowTile::has_two_sets). By instructions; five layers
// took 1.02 to 1.22 times as long as predicted with it.
constexpr double kOverlappedStepCycles = 1800;
constexpr double kRowCycles = 1500;  // from loading an input row to having built it
constexpr double kLoadCycles = 25;   // of a loader warp, for an instruction

// Builders load a few pixels behind the last raw row, which they do not use.
constexpr int64_t kOverreadBytes = 128;
constexpr int kMaxRingRows = 48;  // as many barriers fit in their 1 KiB
constexpr int kMaxGradientStages = 6, kInputStages = 3;

constexpr int64_t kMaxChannelBytes = (int64_t{1} << 31) - 1;  // addresses step by 32-bit strides

class RowSearch {
 public:
  RowSearch(const ConvProblem& problem, const DeviceCaps& caps, OperandForm form)
      : p_(problem), caps_(caps), form_(form), components_(count_components(form)) {}

  std::optional<WgradFit> run() {
    if (!has_row_kernel(form_) || p_.x_strides.w != 1 || p_.y_strides.w != 1) return {};
    if (!has_room_for_sums(p_, caps_)) return {};
    base_ = describe_problem(p_);
    flatten_images(p_, base_);
    const int bytes = static_cast<int>(size_of(p_.dtype));
    // cp.async copies 4 bytes at least.
    if (find_copy_unit(0, base_.x_strides, bytes) < 4) return {};
    if (find_copy_unit(0, base_.y_strides, bytes) < 4) return {};
    if (std::max(p_.x_strides.c, p_.y_strides.c) * bytes > kMaxChannelBytes) return {};
    base_.input_source = base_.gradient_source = OperandSource::kRows;
    base_.packed_channels = base_.channels;
    base_.flush_stages = 256;
    if (components_ == 1) {
      for (const RowTile& tile : kPlainRowTiles) visit_tile(tile);
    } else {
      for (const RowTile& tile : kSplitRowTiles) visit_tile(tile);
    }
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
        const int parts = kRowWarpgroups / (filter_tiles * sets);
        const int most = std::min(g.group_count, parts * tile.groups);
        for (int groups = 1; groups <= most; ++groups) {
          g.block_filter_tiles = filter_tiles;
          g.block_tap_groups = groups;
          visit_block(g, sets);
        }
      }
    }
  }

  void visit_block(WgradGeometry g, int sets) {
    group_blocks(g);
    count_filter_blocks(p_, g);
    count_channel_blocks(p_, g);
    if (sets > g.channel_blocks) return;
    RowTiles& t = g.row_tiles;
    t.channel_sets = sets;
    t.block_channels = sets * g.block_channel_tiles * g.atom_channels;
    count_channel_blocks(p_, g);
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
    t.segments = static_cast<int>(ceil_div(g.out_width, kStepPixels));
    t.by_segments = FastDivmod(t.segments);
    for (const int rows : {8, 16, 32}) {
      t.run_bands = static_cast<int>(ceil_div(g.out_height, rows));
      t.run_rows = static_cast<int>(ceil_div(g.out_height, t.run_bands));
      t.by_run_bands = FastDivmod(t.run_bands);
      choose_slices(g);
      if (t.run_bands == 1) break;
    }
  }

  void choose_slices(WgradGeometry& g) {
    g.stages_total = int64_t{g.images} * g.row_tiles.segments * g.row_tiles.run_bands;
    if (g.stages_total >= int64_t{1} << 30) return;
    g.round_stages = g.stages_total;
    for (int waves = 0; waves <= 2; ++waves) {
      const int64_t wanted = waves == 0 ? 1 : int64_t{waves} * caps_.sm_count / g.slice_blocks();
      if (wanted < 1 || (waves > 0 && wanted == 1)) continue;
      g.slices = static_cast<int>(std::min(wanted, g.stages_total));
      if (g.partial_bytes() > caps_.workspace_limit - 4096) continue;
      const double us = predict(g);
      if (best_ && best_->microseconds <= us) continue;
      best_ = WgradFit{
          .form = form_, .geometry = g, .workspace_bytes = g.partial_bytes(), .microseconds = us};
    }
  }

  double predict(const WgradGeometry& g) const {
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
    const double step = std::max({mma, chain, loads, advance * row, copy});
    const double run = kRunCycles + t.run_rows * step + (span_ - advance) * row;
    const double runs = static_cast<double>(ceil_div(g.stages_total, g.slices));
    const double waves =
        static_cast<double>(ceil_div(int64_t{g.slice_blocks()} * g.slices, caps_.sm_count));
    const double main_us = waves * (kBlockCycles + runs * run) / (kClockGhz * 1e3);
    return std::max(main_us, count_bytes(p_) / kMemoryBytesPerUs) + predict_reduction(p_, g);
  }

  const ConvProblem& p_;
  const DeviceCaps& caps_;
  OperandForm form_;
  int components_;
  WgradGeometry base_;
  int span_ = 1;  // input rows that a step of the largest block needs
  std::optional<WgradFit> best_;
};

}  // namespace

std::optional<WgradFit> fit_rows(const ConvProblem& problem, const DeviceCaps& caps,
                                 OperandForm form) {
  return RowSearch(problem, caps, form).run();
}

}  // namespace convx
