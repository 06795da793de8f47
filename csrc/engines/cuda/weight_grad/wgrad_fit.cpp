#include "engines/cuda/weight_grad/wgrad_fit.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <span>

#include "core/arithmetic.h"
#include "engines/cuda/weight_grad/packed_axis.h"
#include "planning/boxed_tensor.h"

namespace convx {
namespace {

class Search {
 public:
  Search(const ConvProblem& problem, const DeviceCaps& caps, OperandForm form,
         bool tensors_are_aligned, double give_up_us)
      : p_(problem),
        caps_(caps),
        form_(form),
        components_(count_components(form)),
        costs_(problem, caps, form),
        tensors_are_aligned_(tensors_are_aligned),
        best_us_(give_up_us) {}

  // stops_early: returns the first geometry that fits, not the fastest.
  std::optional<WgradFit> run(bool stops_early) {
    stops_early_ = stops_early;
    for (const bool folds : {false, true}) {
      if (folds && (p_.S == 1 || p_.groups > 1 || p_.S * p_.C > 64)) continue;
      if (!start(folds)) continue;
      // Sources that need no packing come first: they are mostly faster, and then end the search of
      // the others.
      if (can_convert(form_) && can_read(PackedSide::kInput) && can_read(PackedSide::kGradient)) {
        visit_sources(OperandSource::kConverted, OperandSource::kConverted);
      }
      if (stops_early_ && best_) break;
      // Reading a 16-bit tensor in place is never slower than packing it.
      visit_sources(find_source(PackedSide::kInput), find_source(PackedSide::kGradient));
    }
    return best_;
  }

 private:
  OperandSource find_source(PackedSide side) const {
    const bool in_place = size_of(p_.dtype) == 2 && can_read(side);
    return in_place ? OperandSource::kPixels : OperandSource::kPacked;
  }

  // Whether TMA can read the tensor by position.
  bool can_read(PackedSide side) const {
    const bool is_input = side == PackedSide::kInput;
    const Strides& strides = is_input ? p_.x_strides : p_.y_strides;
    return tensors_are_aligned_ && !(is_input && base_.folds_columns) &&
           has_boxes(strides, is_input ? p_.C : p_.K, size_of(p_.dtype)) && fits_corners(is_input);
  }

  // Whether TMA can walk the positions.
  bool fits_corners(bool is_input) const {
    const WgradGeometry& g = base_;
    if (!is_input) {
      return fits_pixel_corners(0, g.pitch, 1, p_.Q) && fits_pixel_corners(0, g.rows, 1, p_.P);
    }
    return fits_pixel_corners(-g.packed_left, g.pitch, g.stride_w, p_.W) &&
           fits_pixel_corners(-g.pad_top, g.rows, g.stride_h, p_.H);
  }

  // An MMA, for all blocks that use it.
  struct Mma {
    AtomAxis axis;
    int atom_channels, columns;
    // Another MMA has wider atoms of channels in the same columns. It is faster or as fast, unless
    // the workspace holds a part of the tensors only.
    bool is_narrower;
    TapCounts counts;
    int order;  // of equal predictions, the lowest wins
    double bound_us;
  };
  static constexpr int kMaxMmas = 3 * 3 * static_cast<int>(std::size(kPlainColumns));

  TapCounts count_groups(const WgradGeometry& g, int taps) const {
    const bool along_rows = g.atom_axis == AtomAxis::kKernelRows;
    const bool along_columns = g.atom_axis == AtomAxis::kKernelColumns;
    const auto columns = static_cast<int>(column_axis_.shift_of.size());
    const AxisCounts r(static_cast<int>(p_.R), row_axis_.step, along_rows ? taps : 1);
    const AxisCounts s(columns, column_axis_.step, along_columns ? taps : 1);
    return {r, s, std::max(r.most_taps, s.most_taps)};
  }

  // The MMAs with the smallest bounds come first, and end the search of the others.
  void visit_sources(OperandSource input, OperandSource gradient) {
    base_.input_source = input, base_.gradient_source = gradient;
    std::array<Mma, kMaxMmas> mmas;
    int count = 0;
    WgradGeometry g = base_;
    for (const AtomAxis axis :
         {AtomAxis::kKernelColumns, AtomAxis::kKernelRows, AtomAxis::kChannels}) {
      unsigned listed = 0;  // numbers of columns, as bits
      for (const int channels : {64, 32, 16}) {
        if (!set_atoms(g, axis, channels)) continue;
        for (const int columns : list_columns()) {
          if (columns % channels != 0) continue;
          const std::optional<TapCounts> counts = set_columns(g, columns);
          if (!counts) continue;
          const unsigned bit = 1u << columns / 32;
          const bool is_narrower = axis == AtomAxis::kChannels && p_.groups == 1 && (listed & bit);
          listed |= bit;
          if (stops_early_) {
            visit_mma(g, *counts);
            if (best_) return;
            continue;
          }
          const double bound_us = bound_mma(costs_, g, counts->groups());
          mmas[count] = {axis, channels, columns, is_narrower, *counts, count, bound_us};
          ++count;
        }
      }
    }
    std::sort(mmas.begin(), mmas.begin() + count, [](const Mma& a, const Mma& b) {
      return a.bound_us != b.bound_us ? a.bound_us < b.bound_us : a.order < b.order;
    });
    best_order_ = -1;  // of other sources: a tie does not replace it
    for (int i = 0; i < count && mmas[i].bound_us < best_us_; ++i) {
      if (mmas[i].is_narrower && !has_rounds_) continue;
      order_ = mmas[i].order;
      set_atoms(g, mmas[i].axis, mmas[i].atom_channels);
      set_columns(g, mmas[i].columns);
      visit_mma(g, mmas[i].counts);
    }
  }

  // Sets what depends on the problem and on folding alone.
  bool start(bool folds) {
    base_ = describe_problem(p_);
    WgradGeometry& g = base_;
    g.folds_columns = folds;
    g.packed_left = g.pad_left;
    g.packed_channels = narrow(folds ? p_.S * p_.C : p_.C);
    row_axis_ = make_packed_axis(p_.H, p_.P, p_.R, p_.stride.h, p_.dilation.h, p_.pad.top);
    if (folds) {
      column_axis_ = {.residues = {0},
                      .residue_of = {0},
                      .shift_of = {0},
                      .length = p_.Q,
                      .step = 1,
                      .step_shift = 0};
    } else {
      // Pairs of columns are loaded at once where they are aligned: in rows of even pitch that
      // begin at an even column.
      const bool pairs = p_.stride.w == 1 && p_.x_strides.w == 1 && p_.W % 2 == 0;
      g.input_has_pairs = pairs;
      const int64_t extra = pairs ? p_.pad.left % 2 : 0;
      g.packed_left += narrow(extra);
      column_axis_ = make_packed_axis(p_.W, p_.Q, p_.S, p_.stride.w, p_.dilation.w,
                                      p_.pad.left + extra, extra);
    }
    g.gradient_has_pairs = p_.y_strides.w == 1 && p_.Q % 2 == 0;
    if (g.input_has_pairs || g.gradient_has_pairs) column_axis_.length += column_axis_.length % 2;
    if (p_.R * p_.S > kMaxWgradTaps) return false;
    if (!has_room_for_sums(p_, caps_)) return false;
    const int64_t residues =
        static_cast<int64_t>(row_axis_.residues.size() * column_axis_.residues.size());
    if (residues > kMaxResidues) return false;
    if (p_.N * row_axis_.length >= (int64_t{1} << 30) / column_axis_.length) return false;
    g.pitch = narrow(column_axis_.length), g.rows = narrow(row_axis_.length);
    g.by_pitch = FastDivmod(g.pitch), g.by_rows = FastDivmod(g.rows);
    for (const int64_t row : row_axis_.residues) {
      for (const int64_t column : column_axis_.residues) {
        g.residues[g.residue_count++] = {narrow(row), narrow(column)};
      }
    }
    g.stages_total = ceil_div(p_.N * g.rows * g.pitch, kStagePositions);
    // For bounds: what all geometries have at least.
    g.gradient_rows = g.input_rows = g.stages_total * kStagePositions;
    g.slices = 1;
    g.filter_tiles = narrow(ceil_div(p_.K, kTileFilters));
    g.flush_stages = 256 / count_mmas(components_);
    g.images_end_in_gaps = components_ == 1 && g.rows * g.pitch == kStagePositions &&
                           (p_.P - 1) * g.pitch + p_.Q <= kStagePositions - 8;
    return true;
  }

  // Returns false if the layer has no such atoms, or if narrower ones do as well.
  bool set_atoms(WgradGeometry& g, AtomAxis axis, int atom_channels) const {
    // Narrower atoms are for few channels: they halve what an MMA reads of useful columns.
    if (atom_channels > 16 && g.packed_channels <= atom_channels / 2) return false;
    g.atom_axis = axis;
    g.atom_channels = atom_channels;
    g.row_bytes = 2 * atom_channels;
    g.atom_bits = std::bit_width(static_cast<unsigned>(atom_channels)) - 1;
    g.channel_tiles = static_cast<int>(ceil_div(g.packed_channels, atom_channels));
    g.atom_shift = g.atom_s = g.atom_r = 0;
    if (axis == AtomAxis::kKernelColumns) {
      if (static_cast<int64_t>(column_axis_.shift_of.size()) <= column_axis_.step) return false;
      g.atom_shift = static_cast<int>(column_axis_.step_shift);
      g.atom_s = static_cast<int>(column_axis_.step);
    } else if (axis == AtomAxis::kKernelRows) {
      if (p_.R <= row_axis_.step) return false;
      g.atom_shift = static_cast<int>(row_axis_.step_shift * g.pitch);
      g.atom_r = static_cast<int>(row_axis_.step);
    }
    return true;
  }

  std::span<const int> list_columns() const {
    return promotes_sums(form_) ? std::span<const int>(kPromotedColumns) : kPlainColumns;
  }

  // Atoms of an MMA that are taps.
  static int count_tap_atoms(const WgradGeometry& g) {
    return g.atom_axis == AtomAxis::kChannels ? 1 : g.atoms();
  }

  // Returns nothing if there are too many groups of taps, or if narrower MMAs do as well.
  std::optional<TapCounts> set_columns(WgradGeometry& g, int columns) const {
    g.columns = columns;
    const int tap_atoms = count_tap_atoms(g);
    g.block_channel_tiles = g.atoms() / tap_atoms;
    // A narrower MMA does as well where the last atom has no channel; the narrowest must do.
    if (g.atom_axis == AtomAxis::kChannels && columns > kNarrowestColumns &&
        (g.atoms() - 1) * g.atom_channels >= g.packed_channels) {
      return {};
    }
    const TapCounts counts = count_groups(g, tap_atoms);
    // An MMA of which no group uses half of the atoms is one that a narrower MMA does as well.
    if (counts.groups() > kMaxTapGroups || (tap_atoms > 1 && 2 * counts.most_taps <= tap_atoms)) {
      return {};
    }
    return counts;
  }

  // Visits all blocks of an MMA.
  void visit_mma(WgradGeometry& g, const TapCounts& counts) {
    bool has_groups = false;
    const int most_consumers = max_consumers(g.columns, form_, g.converts());
    for (int filter_tiles = 1; filter_tiles <= 3; ++filter_tiles) {
      if (filter_tiles > 1 && (filter_tiles - 1) * kTileFilters >= p_.K) break;
      g.block_filter_tiles = filter_tiles;
      count_filter_blocks(p_, g);
      count_channel_blocks(p_, g);
      for (int tap_groups = 1; filter_tiles * tap_groups <= most_consumers; ++tap_groups) {
        if (tap_groups > counts.most_residue_groups()) break;
        g.block_tap_groups = tap_groups;
        g.group_blocks = counts.blocks(tap_groups);
        if (bound_wgrad(costs_, g, best_us_) >= best_us_) continue;
        if (!has_groups) collect_groups(g, count_tap_atoms(g));
        has_groups = true;
        visit_block(g);
      }
    }
  }

  // Cuts the taps of every residue into groups of at most `taps` along the atoms' axis.
  void collect_groups(WgradGeometry& g, int taps) const {
    const bool along_rows = g.atom_axis == AtomAxis::kKernelRows;
    const int64_t row_step = along_rows ? row_axis_.step : 1;
    const int64_t column_step = g.atom_axis == AtomAxis::kKernelColumns ? column_axis_.step : 1;
    const int64_t row_reach = along_rows ? row_step * taps : 1;
    const int64_t column_reach = g.atom_axis == AtomAxis::kKernelColumns ? column_step * taps : 1;
    const auto columns = static_cast<int64_t>(column_axis_.shift_of.size());
    g.group_count = 0;
    for (int64_t r = 0; r < p_.R; ++r) {
      if (r % row_reach >= row_step) continue;  // inside of a group
      for (int64_t s = 0; s < columns; ++s) {
        if (s % column_reach >= column_step) continue;
        const int64_t left =
            along_rows ? ceil_div(p_.R - r, row_step) : ceil_div(columns - s, column_step);
        const int64_t own = g.atom_axis == AtomAxis::kChannels ? 1 : std::min<int64_t>(taps, left);
        const auto residue =
            row_axis_.residue_of[r] * static_cast<int64_t>(column_axis_.residues.size()) +
            column_axis_.residue_of[s];
        const int64_t shift = row_axis_.shift_of[r] * g.pitch + column_axis_.shift_of[s];
        g.groups[g.group_count++] = {static_cast<int>(shift), static_cast<short>(residue),
                                     static_cast<short>(own), static_cast<short>(r),
                                     static_cast<short>(s)};
      }
    }
    std::sort(g.groups, g.groups + g.group_count, [](const TapGroup& a, const TapGroup& b) {
      return a.residue != b.residue ? a.residue < b.residue : a.shift < b.shift;
    });
  }

  void visit_block(WgradGeometry g) {
    // Converting blocks multiply all positions: a layer of such small images is packed.
    if (g.converts()) g.images_end_in_gaps = false;
    group_blocks(g);
    g.by_grid_minor = FastDivmod(g.slice_blocks());

    const int reach = (g.atom_axis == AtomAxis::kChannels ? 0 : g.atoms() - 1) * g.atom_shift;
    int window = 0, last_base = 0;
    for (int block = 0; block < g.group_blocks; ++block) {
      const int base = g.groups[g.block_groups[block]].shift / 8 * 8;
      window = std::max(window, g.groups[g.block_groups[block + 1] - 1].shift - base);
      last_base = std::max(last_base, base);
    }
    g.halo_stages = (kStagePositions - 1 + window + reach) / kStagePositions;
    const int skipped = g.images_end_in_gaps ? 8 : 0;  // inside of an MMA's operand
    // A single tap reads whole stages.
    const bool is_single = g.group_count == 1 && reach == 0 && g.groups[0].shift % 8 == 0;
    g.takes_turns = is_single && g.converts();
    g.mirrored_stages =
        is_single ? 0 : static_cast<int>(ceil_div(15 + skipped + reach, kStagePositions));
    const int64_t input_stage =
        int64_t{components_} * g.block_channel_tiles * kStagePositions * g.row_bytes;
    const int64_t gradient_stage =
        int64_t{components_} * g.block_filter_tiles * kStagePositions * kGradientRowBytes;
    const int64_t fixed = 2048 + (g.halo_stages + g.mirrored_stages) * input_stage;
    const int64_t stage = input_stage + gradient_stage;
    // Leaves so many bytes of shared memory to others.
    const auto set_stages = [&](int64_t others) {
      const int64_t room = caps_.shared_bytes_per_block - fixed - others;
      const int64_t least_staging = g.converts() ? kMinStagingSlots * kStagingSlotBytes : 0;
      // Converted operands need no more stages: the staging ring is what runs ahead.
      const int64_t most = !g.converts() ? 8 : components_ > 1 ? 2 : 4;
      g.stages = static_cast<int>(std::min(most, (room - least_staging) / stage));
      if (g.images_end_in_gaps) g.stages -= g.stages % 2;  // pairs do not wrap
      if (g.stages < 2) return false;
      g.ring_stages = g.stages + g.halo_stages;
      const int64_t slots = (room - g.stages * stage) / kStagingSlotBytes;
      // 1x1 layers are limited by memory, which is faster where blocks run less far ahead: kb87pw
      // in TF32 and channels_last takes 2,902 us with 4 slots, 2,933 with 6 and 2,943 with 8 (H200,
      // 2026-11-19).
      const int64_t most_slots = is_single ? kMinStagingSlots : kMaxStagingSlots;
      g.staging_slots = g.converts() ? static_cast<int>(std::min(most_slots, slots)) : 0;
      g.shared_bytes =
          static_cast<int>(fixed + g.stages * stage + g.staging_slots * kStagingSlotBytes);
      return g.mirrored_stages <= g.ring_stages;
    };
    block_costs_ = make_block_costs(costs_, g);
    if (set_stages(g.table_bytes())) choose_clusters(g, last_base);
    if (!set_stages(0)) return;
    choose_slices(g, last_base);
  }

  // Split-K whose slices are the blocks of a cluster.
  void choose_clusters(WgradGeometry g, int last_base) {
    if (!reserve_store(caps_, g.consumers(), g)) return;
    if (!fit_round(g, last_base, caps_.workspace_limit - 4096)) return;
    if (g.round_stages < g.stages_total) return;
    // Blocks that convert form no clusters: one that finds values that do not fit returns early.
    // The others need a multiprocessor each.
    const int most = g.converts() ? 1 : std::min(kMaxClusterSlices, caps_.sm_count);
    for (g.slices = 1; g.slices <= std::min<int64_t>(most, g.stages_total); ++g.slices) {
      // Accumulators stay in registers.
      if (!promotes_sums(form_) && ceil_div(g.stages_total, g.slices) > g.flush_stages) continue;
      g.by_grid_minor = FastDivmod(g.slices);
      consider(g);
    }
  }

  // Split-K: slices that fill the GPU once or a few times.
  void choose_slices(WgradGeometry& g, int last_base) {
    visit_slices(caps_, kMostSliceWaves, g, [&](const WgradGeometry&) {
      const int64_t rest = caps_.workspace_limit - 4096 - g.partial_bytes();
      if (fit_round(g, last_base, rest)) consider(g);
    });
  }

  void consider(const WgradGeometry& g) {
    const double microseconds = predict_wgrad(costs_, block_costs_, g);
    const bool is_tie = microseconds == best_us_ && order_ < best_order_;
    if (microseconds >= best_us_ && !is_tie) return;
    best_us_ = microseconds, best_order_ = order_;
    const int64_t bytes =
        g.partial_bytes() + g.gradient_bytes(components_) + g.input_bytes(components_);
    best_ = WgradFit{form_, g, bytes, microseconds};
    set_block_divisors(best_->geometry);
  }

  // The longest round whose packed tensors stay within so many bytes.
  bool fit_round(WgradGeometry& g, int last_base, int64_t bytes) {
    const int64_t input_unit = kPackedBlockBytes / g.row_bytes;
    const auto set = [&](int64_t stages) {
      g.round_stages = stages;
      g.gradient_rows = stages * kStagePositions;
      g.input_rows = round_up((stages + g.halo_stages) * kStagePositions + last_base, input_unit);
      return g.gradient_bytes(components_) + g.input_bytes(components_) <= bytes;
    };
    if (set(g.stages_total)) return true;
    has_rounds_ = true;
    if (bytes < 0) return false;
    g.gradient_rows = g.input_rows = 1;
    const int64_t input_row = g.input_bytes(components_);
    const int64_t stage_bytes = kStagePositions * (g.gradient_bytes(components_) + input_row);
    const int64_t halo_rows = g.halo_stages * kStagePositions + last_base;
    // Rows are packed in units, which may cost a few stages of what fits by its bytes.
    int64_t low = std::min((bytes - halo_rows * input_row) / stage_bytes, g.stages_total - 1);
    while (low > 0 && !set(low)) --low;
    if (low <= 0) return false;
    // Rounds of equal length, none of which has fewer stages than there are slices.
    const int64_t rounds = ceil_div(g.stages_total, low);
    return set(ceil_div(g.stages_total, rounds)) && g.round_stages >= g.slices;
  }

  const ConvProblem& p_;
  const DeviceCaps& caps_;
  OperandForm form_;
  int components_;
  const WgradCosts costs_;
  WgradBlockCosts block_costs_{};  // of the block that is visited
  WgradGeometry base_;
  PackedAxis row_axis_, column_axis_;
  bool tensors_are_aligned_;
  bool stops_early_ = false;
  bool has_rounds_ = false;          // the workspace was too small for all positions of a geometry
  double best_us_;                   // of best_, or what a geometry must beat
  int order_ = 0, best_order_ = -1;  // see Mma
  std::optional<WgradFit> best_;
};

}  // namespace

std::optional<WgradFit> fit_positions(const ConvProblem& problem, const DeviceCaps& caps,
                                      OperandForm form, bool tensors_are_aligned,
                                      double give_up_us) {
  return Search(problem, caps, form, tensors_are_aligned, give_up_us).run(false);
}

std::optional<WgradFit> fit_wgrad(const ConvProblem& problem, const DeviceCaps& caps,
                                  OperandForm form, bool tensors_are_aligned, double give_up_us) {
  std::optional<WgradFit> best =
      fit_positions(problem, caps, form, tensors_are_aligned, give_up_us);
  const auto consider = [&](auto fit) {
    std::optional<WgradFit> other =
        fit(problem, caps, form, best ? best->microseconds : give_up_us);
    if (other) best = std::move(other);
  };
  if (tensors_are_aligned) consider(fit_row_boxes);
  if (tensors_are_aligned || size_of(problem.dtype) >= kRowAlignment) consider(fit_rows);
  return best;
}

bool fits_wgrad(const ConvProblem& problem, const DeviceCaps& caps, OperandForm form) {
  // Packed operands have the fewest limits.
  return Search(problem, caps, form, false, kNeverGiveUp).run(true).has_value();
}

}  // namespace convx
