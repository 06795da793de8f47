// The packed weights of a gather: panels of target channels, a register tile wide.
#pragma once

#include "engines/cpu/driver/drivers.h"

namespace convx {

// The part of the work that one task computes.
struct GatherTask {
  int64_t image, group;
  int64_t row_phase, column_phase;
  int64_t channel, channels;  // target channels, within the group
  LatticeChunk chunk;
};

template <typename Acc>
class GatherWeights {
 public:
  GatherWeights(const ConvProblem& problem, const GatherGeometry& geometry, const Buffers& buffers)
      : problem_(problem),
        g_(geometry),
        kernels_(find_kernels<Acc>(problem.dtype)),
        bytes_(size_of(problem.dtype)),
        weights_(static_cast<const char*>(buffers.w)),
        shared_(static_cast<Acc*>(buffers.workspace)) {
    const int64_t tile_m = std::min(g_.tile.m, g_.view.target_channels);
    over_channels_ = vectors_run_over_channels(problem, g_, kernels_.lanes, kernels_.panel_vectors);
    // Few rows leave registers for more columns.
    tile_vectors_ = tile_m <= kernels_.max_rows[1] ? 4 : 2;
  }

  // Whether vectors run over target channels, else over pixels.
  bool over_channels() const { return over_channels_; }
  // Vectors of pixels in a register tile.
  int tile_vectors() const { return tile_vectors_; }

  // Panels of a block of `channels` target channels: as even as possible, or whole vectors.
  int64_t count_panels(int64_t channels) const {
    if (!over_channels_) return ceil_div(channels, kernels_.max_rows[tile_vectors_ == 2 ? 0 : 1]);
    int64_t panels = 0;
    for (int64_t m = 0; m < channels; ++panels) m += count_vectors(channels - m) * kernels_.lanes;
    return panels;
  }

  // First target channel of a panel, counted from the block's first. Panel `panels` is the end.
  int64_t find_panel(int64_t channels, int64_t panels, int64_t panel) const {
    if (!over_channels_) return panel * channels / panels;
    int64_t m = 0;
    while (panel-- > 0) m += count_vectors(channels - m) * kernels_.lanes;
    return m;
  }

  int count_vectors(int64_t channels) const {
    const int64_t vectors = channels / kernels_.lanes;
    return vectors >= kernels_.panel_vectors ? kernels_.panel_vectors : vectors >= 2 ? 2 : 1;
  }

  // Packs the weights of a block as [panel][depth][row in panel]. The panels of all channel blocks
  // are contiguous, so the panel of target channel m starts at m * depth.
  void pack(const GatherTask& task, const DepthBlock& block, Acc* out) const {
    const GatherView& view = g_.view;
    const Strides& strides = problem_.w_strides;
    const auto& row_taps = view.rows[task.row_phase].taps;
    const auto& column_taps = view.columns[task.column_phase].taps;
    // The taps of a phase are evenly spaced. If that spacing continues from row to row or from
    // channel to channel, as in dense weights with stride 1, longer runs are copied at once.
    auto spacing = [](const std::vector<AxisTap>& taps) {
      return taps.size() > 1 ? taps[1].tap - taps[0].tap : 0;
    };
    const int64_t column_step = spacing(column_taps) * strides.w;
    const int64_t row_step = spacing(row_taps) * strides.h;
    int64_t run = block.columns;
    int64_t run_step = block.columns > 1 ? column_step : block.rows > 1 ? row_step : 0;
    if (block.columns == 1 || block.rows == 1 || row_step == block.columns * column_step) {
      run *= block.rows;
      if (run == 1) run_step = view.weight_source_stride;
      if (block.channels == 1 || view.weight_source_stride == run * run_step) run *= block.channels;
    }
    const int64_t panels = count_panels(task.channels);
    RowCopy copy;
    copy.rows = run;
    copy.row_stride = run_step;
    copy.column_stride = view.weight_target_stride;
    // Panels are the inner loop, because the weights of all target channels are neighbours in the
    // input gradient. In the forward pass, a run mostly is the whole block.
    for (int64_t k = 0; k < block.depth(); k += run) {
      const int64_t c = k / (block.rows * block.columns);
      const int64_t r = k / block.columns % block.rows;
      for (int64_t p = 0; p < panels; ++p) {
        const int64_t m = find_panel(task.channels, panels, p);
        copy.columns = find_panel(task.channels, panels, p + 1) - m;
        copy.pitch = copy.columns;
        const int64_t offset = task.group * problem_.filters_per_group() * strides.n +
                               (task.channel + m) * view.weight_target_stride +
                               (block.channel + c) * view.weight_source_stride +
                               row_taps[block.row + r].tap * strides.h +
                               column_taps[block.column].tap * strides.w;
        copy.source = weights_ + offset * bytes_;
        kernels_.load_rows(copy, out + m * block.depth() + k * copy.columns);
      }
    }
  }

  // Shared packed weights: [group][phase pair][depth block][target channel panels].
  Acc* find_shared(const GatherTask& task, const DepthBlock& block) const {
    int64_t taps_before = 0;
    const int64_t row_taps = g_.count_row_taps(task.row_phase);
    const int64_t column_taps = g_.count_column_taps(task.column_phase);
    for (int64_t i = 0; i < task.row_phase; ++i) taps_before += g_.count_row_taps(i) * problem_.S;
    for (int64_t j = 0; j < task.column_phase; ++j)
      taps_before += row_taps * g_.count_column_taps(j);
    const int64_t depth_before =
        block.channel * row_taps * column_taps + block.row * column_taps + block.column;
    const int64_t per_channel = g_.view.source_channels;
    return shared_ +
           g_.view.target_channels * (task.group * per_channel * problem_.taps() +
                                      per_channel * taps_before + depth_before) +
           task.channel * block.depth();
  }

  void pack_shared(int64_t group, int64_t row_phase, int64_t column_phase, int64_t channel) const {
    GatherTask task{};
    task.group = group;
    task.row_phase = row_phase;
    task.column_phase = column_phase;
    const int64_t channel_end = std::min(channel + g_.box.channels, g_.view.source_channels);
    for_each_depth_block(g_.box, channel, channel_end, g_.count_row_taps(row_phase),
                         g_.count_column_taps(column_phase), [&](const DepthBlock& block) {
                           for (int64_t m = 0; m < g_.view.target_channels; m += g_.tile.m) {
                             task.channel = m;
                             task.channels = std::min(g_.tile.m, g_.view.target_channels - m);
                             pack(task, block, find_shared(task, block));
                           }
                         });
  }

 private:
  const ConvProblem& problem_;
  const GatherGeometry& g_;
  const CpuKernels<Acc>& kernels_;
  const int64_t bytes_;
  const char* weights_;
  Acc* shared_;
  bool over_channels_;
  int tile_vectors_;
};

}  // namespace convx
