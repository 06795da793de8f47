#include <algorithm>

#include "engines/cpu/driver/gather_driver.h"
#include "engines/cpu/driver/limits.h"

namespace convx {
namespace {

constexpr int64_t kPanelsInPlace = 4;

// The part of the work that one task computes.
struct GatherTask {
  int64_t image, group;
  int64_t row_phase, column_phase;
  int64_t channel, channels;  // target channels, within the group
  LatticeChunk chunk;
};

// The columns of the matrix product are computed in register tiles. Columns of a tile are
//   packed:   lattice points in order, without gaps;
//   in place: positions of the staged image, either one run through all rows including the halo, or
//             vector by vector within each row, whichever needs fewer vectors.
struct ColumnTiling {
  bool packed;
  bool by_row;
  int64_t rows, columns, pitch;
  int lanes, vectors;
  int64_t tiles;

  int64_t width() const { return int64_t{lanes} * vectors; }
};

ColumnTiling make_tiling(bool packed, const LatticeChunk& chunk, int64_t pitch, int lanes,
                         int vectors) {
  ColumnTiling t{packed, false, chunk.rows, chunk.columns, pitch, lanes, vectors, 0};
  int64_t in_vectors = ceil_div(chunk.rows * chunk.columns, lanes);
  if (!packed) {
    const int64_t by_row = chunk.rows * ceil_div(chunk.columns, lanes);
    in_vectors = ceil_div((chunk.rows - 1) * pitch + chunk.columns, lanes);
    t.by_row = by_row <= in_vectors;
    in_vectors = std::min(in_vectors, by_row);
  }
  t.tiles = ceil_div(in_vectors, vectors);
  return t;
}

struct TileColumns {
  int64_t vector_start[kMaxTileVectors];  // staged positions, in place only
  TileSegment segments[kMaxTileColumns];
  int64_t segment_count;
};

void add_segment(TileColumns& out, const ColumnTiling& t, int64_t row, int64_t column,
                 int64_t position, int64_t count, int64_t row_stride, int64_t column_stride) {
  out.segments[out.segment_count++] = {row * t.pitch + column,
                                       row * row_stride + column * column_stride,
                                       static_cast<int32_t>(position), static_cast<int32_t>(count)};
}

// row_stride and column_stride lead from one lattice point to the next in the target tensor.
void describe_tile(const ColumnTiling& t, int64_t tile, int64_t row_stride, int64_t column_stride,
                   TileColumns& out) {
  out.segment_count = 0;
  if (t.by_row) {
    const int64_t per_row = ceil_div(t.columns, t.lanes);
    for (int v = 0; v < t.vectors; ++v) {
      const int64_t index = tile * t.vectors + v;
      const int64_t row = index / per_row, column = index % per_row * t.lanes;
      out.vector_start[v] = row < t.rows ? row * t.pitch + column : 0;
      if (row >= t.rows) continue;
      add_segment(out, t, row, column, int64_t{v} * t.lanes,
                  std::min<int64_t>(t.lanes, t.columns - column), row_stride, column_stride);
    }
    return;
  }
  const int64_t row_length = t.packed ? t.columns : t.pitch;
  const int64_t first = tile * t.width();
  const int64_t last = std::min(first + t.width(), (t.rows - 1) * row_length + t.columns);
  for (int v = 0; v < t.vectors; ++v) out.vector_start[v] = first + int64_t{v} * t.lanes;
  int64_t row = first / row_length, column = first % row_length;
  for (int64_t at = first; at < last; ++row, column = 0) {
    const int64_t count = std::min(t.columns - column, last - at);
    if (count > 0) {
      add_segment(out, t, row, column, at - first, count, row_stride, column_stride);
    }
    at += row_length - column;
  }
}

template <typename Acc>
class GatherLaunch {
 public:
  GatherLaunch(const ConvProblem& problem, const Plan& plan, const Buffers& buffers)
      : problem_(problem),
        g_(*static_cast<const GatherGeometry*>(plan.shape.get())),
        kernels_(find_kernels<Acc>(problem.dtype)),
        bytes_(size_of(problem.dtype)),
        weights_(static_cast<const char*>(buffers.w)),
        bias_(static_cast<const char*>(buffers.bias)),
        shared_(static_cast<Acc*>(buffers.workspace)) {
    const bool forward = problem.pass == Pass::kForward;
    source_ = static_cast<const char*>(forward ? buffers.x : buffers.y);
    target_ = static_cast<char*>(forward ? buffers.y : buffers.x);
    const int64_t tile_m = std::min(g_.tile.m, g_.view.target_channels);
    // Few rows leave registers for more columns.
    vectors_ = tile_m <= kernels_.max_rows[1] ? 4 : 2;
    const int64_t slot_bytes = g_.slot_elements() * static_cast<int64_t>(sizeof(Acc));
    const int64_t slots_bytes =
        plan.workspace_bytes - g_.shared_weights * static_cast<int64_t>(sizeof(Acc));
    slots_ = std::max<int64_t>(slots_bytes / std::max<int64_t>(slot_bytes, 1), 1);
  }

  void run(TaskRunner runner) {
    runner.slots = static_cast<int>(std::min<int64_t>(runner.slots, slots_));
    const int64_t row_phases = static_cast<int64_t>(g_.view.rows.size());
    const int64_t column_phases = static_cast<int64_t>(g_.view.columns.size());
    const int64_t pieces = problem_.groups * row_phases * column_phases;
    if (problem_.N == 0) return;
    if (g_.shared_weights > 0) {
      const int64_t parts = ceil_div(g_.view.source_channels, g_.box.channels);
      run_tasks(runner, pieces * parts, [&](int, int64_t index) {
        pack_shared(index / parts / row_phases / column_phases,
                    index / parts / column_phases % row_phases, index / parts % column_phases,
                    index % parts * g_.box.channels);
      });
    }
    const int64_t chunks = g_.row_chunks * g_.column_chunks * g_.channel_blocks;
    const int64_t batches = ceil_div(problem_.groups, g_.group_batch);
    const int64_t tasks = problem_.N * batches * row_phases * column_phases * chunks;
    run_tasks(runner, tasks, [&](int slot, int64_t index) {
      int64_t rest = index;
      auto take = [&rest](int64_t extent) {
        const int64_t digit = rest % extent;
        rest /= extent;
        return digit;
      };
      GatherTask task;
      task.channel = take(g_.channel_blocks) * g_.tile.m;
      task.chunk.column = take(g_.column_chunks) * g_.tile.k;
      task.chunk.row = take(g_.row_chunks) * g_.tile.n;
      task.column_phase = take(column_phases);
      task.row_phase = take(row_phases);
      const int64_t first_group = take(batches) * g_.group_batch;
      task.image = rest;
      task.channels = std::min(g_.tile.m, g_.view.target_channels - task.channel);
      const AxisPhase& down = g_.view.rows[task.row_phase];
      const AxisPhase& across = g_.view.columns[task.column_phase];
      task.chunk.rows = std::min(g_.tile.n, down.count - task.chunk.row);
      task.chunk.columns = std::min(g_.tile.k, across.count - task.chunk.column);
      if (task.chunk.rows <= 0 || task.chunk.columns <= 0) return;
      const int64_t last_group = std::min(first_group + g_.group_batch, problem_.groups);
      for (task.group = first_group; task.group < last_group; ++task.group) run_task(slot, task);
    });
  }

 private:
  int64_t count_row_taps(int64_t phase) const { return g_.view.rows[phase].taps.size(); }
  int64_t count_column_taps(int64_t phase) const { return g_.view.columns[phase].taps.size(); }

  // Panels of a block of `channels` target channels, as even as possible.
  int64_t count_panels(int64_t channels) const {
    return ceil_div(channels, kernels_.max_rows[vectors_ == 2 ? 0 : 1]);
  }

  // Packs the weights of a block as [panel][depth][row in panel]. The panels of all channel blocks
  // are contiguous, so the panel of target channel m starts at m * depth.
  void pack_weights(const GatherTask& task, const DepthBlock& block, Acc* out) const {
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
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t m = p * task.channels / panels;
      copy.columns = (p + 1) * task.channels / panels - m;
      copy.pitch = copy.columns;
      for (int64_t k = 0; k < block.depth(); k += run) {
        const int64_t c = k / (block.rows * block.columns);
        const int64_t r = k / block.columns % block.rows;
        const int64_t offset = task.group * problem_.filters_per_group() * strides.n +
                               (task.channel + m) * view.weight_target_stride +
                               (block.channel + c) * view.weight_source_stride +
                               row_taps[block.row + r].tap * strides.h +
                               column_taps[block.column].tap * strides.w;
        copy.source = weights_ + offset * bytes_;
        kernels_.load_rows(copy, out);
        out += run * copy.columns;
      }
    }
  }

  // Shared packed weights: [group][phase pair][depth block][target channel panels].
  Acc* find_shared(const GatherTask& task, const DepthBlock& block) const {
    int64_t taps_before = 0;
    const int64_t row_taps = count_row_taps(task.row_phase);
    const int64_t column_taps = count_column_taps(task.column_phase);
    for (int64_t i = 0; i < task.row_phase; ++i) taps_before += count_row_taps(i) * problem_.S;
    for (int64_t j = 0; j < task.column_phase; ++j) taps_before += row_taps * count_column_taps(j);
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
    for_each_depth_block(g_.box, channel, channel_end, count_row_taps(row_phase),
                         count_column_taps(column_phase), [&](const DepthBlock& block) {
                           for (int64_t m = 0; m < g_.view.target_channels; m += g_.tile.m) {
                             task.channel = m;
                             task.channels = std::min(g_.tile.m, g_.view.target_channels - m);
                             pack_weights(task, block, find_shared(task, block));
                           }
                         });
  }

  void run_task(int slot, const GatherTask& task) const {
    const int64_t row_taps = count_row_taps(task.row_phase);
    const int64_t column_taps = count_column_taps(task.column_phase);
    Acc* slice = shared_ + g_.shared_weights + slot * g_.slot_elements();
    if (row_taps * column_taps == 0) return store_zeros(task, slice);
    const int64_t depth_end = g_.view.source_channels * row_taps * column_taps;
    int64_t done = 0;
    for_each_depth_block(g_.box, 0, g_.view.source_channels, row_taps, column_taps,
                         [&](const DepthBlock& block) {
                           const bool first = done == 0;
                           done += block.depth();
                           multiply_block(task, block, slice, first, done == depth_end);
                         });
  }

  void multiply_block(const GatherTask& task, const DepthBlock& block, Acc* slice, bool first,
                      bool last) const {
    const int64_t depth = block.depth();
    const Acc* weights = slice;
    if (g_.shared_weights > 0) {
      weights = find_shared(task, block);
    } else {
      pack_weights(task, block, slice);
    }
    Acc* staged = slice + g_.slot_weights;
    Acc* panel = staged + g_.slot_staged;
    Acc* sums = panel + g_.slot_panel;
    const StagedShape shape =
        make_staged_shape(g_.row_layouts[task.row_phase][block.row / g_.box.rows],
                          g_.column_layouts[task.column_phase][block.column / g_.box.columns], 0);
    stage_channels(kernels_, source_planes(task, block), shape, task.chunk, block.channels, staged);
    int32_t tap_offsets[kMaxDepth], panel_offsets[kMaxDepth];
    fill_tap_offsets(shape, block.channels, tap_offsets);

    const ColumnTiling tiling =
        make_tiling(g_.packed, task.chunk, shape.pitch, kernels_.lanes, vectors_);
    const int64_t width = tiling.width();
    if (g_.packed) {
      for (int64_t k = 0; k < depth; ++k) panel_offsets[k] = static_cast<int32_t>(k * width);
    }
    // Packed: all channels for each tile, so that a panel is packed once. In place: a few channels
    // for all tiles, so that the target is written in long runs.
    const int64_t panels = count_panels(task.channels);
    const int64_t panel_step = g_.packed ? panels : std::min<int64_t>(panels, kPanelsInPlace);
    TileColumns columns;
    for (int64_t first_panel = 0; first_panel < panels; first_panel += panel_step) {
      const int64_t last_panel = std::min(first_panel + panel_step, panels);
      const int64_t channel = first_panel * task.channels / panels;
      const int64_t channel_end = last_panel * task.channels / panels;
      for (int64_t tile = 0; tile < tiling.tiles; ++tile) {
        describe_tile(tiling, tile, target_row_stride(task), target_column_stride(task), columns);
        const Acc* vectors[kMaxTileVectors];
        for (int v = 0; v < vectors_; ++v) {
          vectors[v] = g_.packed ? panel + v * kernels_.lanes : staged + columns.vector_start[v];
        }
        if (g_.packed) {
          kernels_.pack_panel(staged, tap_offsets, depth, columns.segments, columns.segment_count,
                              width, panel);
        }
        // [tile][channel][column]. If this block has the whole depth, there is one tile at a time.
        const bool alone = first && last;
        Acc* tile_sums = sums + (alone ? 0 : (tile * task.channels + channel) * width);
        for (int64_t p = first_panel; p < last_panel; ++p) {
          const int64_t m = p * task.channels / panels;
          const int64_t rows = (p + 1) * task.channels / panels - m;
          kernels_.multiply_tile(static_cast<int>(rows), vectors_, depth, weights + m * depth,
                                 vectors, g_.packed ? panel_offsets : tap_offsets, !first,
                                 tile_sums + (m - channel) * width);
        }
        if (last) store_columns(task, channel, channel_end - channel, columns, tile_sums, width);
      }
    }
  }

  SourcePlanes source_planes(const GatherTask& task, const DepthBlock& block) const {
    const Strides& strides = g_.view.source_strides;
    const int64_t channel = task.group * g_.view.source_channels + block.channel;
    return {source_ + (task.image * strides.n + channel * strides.c) * bytes_,
            bytes_,
            g_.view.source_h,
            g_.view.source_w,
            strides.c,
            strides.h,
            strides.w};
  }

  int64_t target_row_stride(const GatherTask& task) const {
    return g_.view.rows[task.row_phase].target_step * g_.view.target_strides.h;
  }
  int64_t target_column_stride(const GatherTask& task) const {
    return g_.view.columns[task.column_phase].target_step * g_.view.target_strides.w;
  }

  // first_channel counts from the task's first channel.
  void store_columns(const GatherTask& task, int64_t first_channel, int64_t channels,
                     const TileColumns& columns, const Acc* sums, int64_t pitch) const {
    const Strides& strides = g_.view.target_strides;
    const AxisPhase& rows = g_.view.rows[task.row_phase];
    const AxisPhase& across = g_.view.columns[task.column_phase];
    const int64_t channel = task.group * g_.view.target_channels + task.channel + first_channel;
    const int64_t row = rows.target_start + task.chunk.row * rows.target_step;
    const int64_t column = across.target_start + task.chunk.column * across.target_step;
    TileStore store;
    store.target = target_ + (task.image * strides.n + channel * strides.c + row * strides.h +
                              column * strides.w) *
                                 bytes_;
    store.bias = bias_ && problem_.pass == Pass::kForward ? bias_ + channel * bytes_ : nullptr;
    store.row_stride = strides.c;
    store.column_stride = target_column_stride(task);
    store.segments = columns.segments;
    store.segment_count = columns.segment_count;
    store.rows = channels;
    store.pitch = pitch;
    kernels_.store_tile(sums, store);
  }

  // Target pixels that no tap reaches are zero.
  void store_zeros(const GatherTask& task, Acc* slice) const {
    const ColumnTiling tiling = make_tiling(true, task.chunk, 0, kernels_.lanes, vectors_);
    Acc* sums = slice + g_.slot_weights + g_.slot_staged + g_.slot_panel;
    std::fill_n(sums, task.channels * tiling.width(), Acc{0});
    TileColumns columns;
    for (int64_t tile = 0; tile < tiling.tiles; ++tile) {
      describe_tile(tiling, tile, target_row_stride(task), target_column_stride(task), columns);
      store_columns(task, 0, task.channels, columns, sums, tiling.width());
    }
  }

  const ConvProblem& problem_;
  const GatherGeometry& g_;
  const CpuKernels<Acc>& kernels_;
  const int64_t bytes_;
  const char* source_;
  char* target_;
  const char* weights_;
  const char* bias_;
  Acc* shared_;
  int vectors_;
  int64_t slots_;
};

}  // namespace

void launch_gather(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                   const TaskRunner& runner) {
  if (problem.dtype == DType::kFloat64) {
    GatherLaunch<double>(problem, plan, buffers).run(runner);
  } else {
    GatherLaunch<float>(problem, plan, buffers).run(runner);
  }
}

}  // namespace convx
