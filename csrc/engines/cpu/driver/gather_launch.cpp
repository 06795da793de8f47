#include <algorithm>
#include <cstdlib>
#include <limits>

#include "engines/cpu/driver/drivers.h"
#include "engines/cpu/driver/gather_tiling.h"
#include "engines/cpu/driver/gather_weights.h"

namespace convx {
namespace {

// Panels whose rows of the target, and of the residual, are visited side by side. The 28 rows of
// two are as many streams as the hardware prefetchers of x86-64 follow; with four panels, 1x1
// layers of few channels took 15% longer.
constexpr int64_t kPanelsInPlace = 2;

template <typename Acc>
class GatherLaunch {
 public:
  GatherLaunch(const ConvProblem& problem, const Plan& plan, const Buffers& buffers)
      : problem_(problem),
        g_(cpu_geometry_of<GatherGeometry>(plan)),
        kernels_(find_kernels<Acc>(problem.dtype)),
        bytes_(size_of(problem.dtype)),
        weights_(problem, g_, buffers),
        bias_(static_cast<const char*>(buffers.bias)),
        residual_(static_cast<const char*>(buffers.residual)),
        shared_(static_cast<Acc*>(buffers.workspace)) {
    const bool forward = problem.pass == Pass::kForward;
    source_ = static_cast<const char*>(forward ? buffers.x : buffers.y);
    target_ = static_cast<char*>(forward ? buffers.y : buffers.x);
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
        weights_.pack_shared(index / parts / row_phases / column_phases,
                             index / parts / column_phases % row_phases,
                             index / parts % column_phases, index % parts * g_.box.channels);
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
  void run_task(int slot, const GatherTask& task) const {
    const int64_t row_taps = g_.count_row_taps(task.row_phase);
    const int64_t column_taps = g_.count_column_taps(task.column_phase);
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
      weights = weights_.find_shared(task, block);
    } else {
      weights_.pack(task, block, slice);
    }
    Acc* staged = slice + g_.slot_weights;
    Acc* panel = staged + g_.slot_staged;
    Acc* sums = panel + g_.slot_panel;
    int32_t offsets[kMaxDepth];
    Product product{block, depth, weights, staged, 0, offsets, sums, first, last};
    if (weights_.over_channels() && can_read_in_place(task, block)) {
      locate_source(task, product, offsets);
    } else {
      const StagedShape shape =
          make_staged_shape(g_.row_layouts[task.row_phase][block.row / g_.box.rows],
                            g_.column_layouts[task.column_phase][block.column / g_.box.columns], 0);
      stage_channels(kernels_, source_planes(task, block), shape, task.chunk, block.channels,
                     staged);
      fill_tap_offsets(shape, block.channels, offsets);
      product.pitch = shape.pitch;
    }
    if (multiplies_plane(g_)) {
      multiply_plane(task, product);
    } else if (weights_.over_channels()) {
      multiply_runs(task, product, panel);
    } else {
      multiply_columns(task, product, panel);
    }
  }

  // One block of the depth. It starts the accumulators if it is the first, and the target is stored
  // after the last.
  struct Product {
    const DepthBlock& block;
    int64_t depth;
    const Acc* weights;
    const Acc* source;       // staged, or in place
    int64_t pitch;           // of its rows
    const int32_t* offsets;  // of the terms, in the source
    Acc* sums;
    bool first, last;
    bool alone() const { return first && last; }
  };

  // Whether all runs of a block can be read from the tensor itself: its elements are accumulators
  // that follow each other, and no column lies in the padding. Rows may, because multiply_runs
  // leaves them out.
  bool can_read_in_place(const GatherTask& task, const DepthBlock& block) const {
    const AxisPhase& down = g_.view.rows[task.row_phase];
    const AxisPhase& across = g_.view.columns[task.column_phase];
    const Strides& strides = g_.view.source_strides;
    const auto is_inside = [&](const AxisTap& tap) {
      const int64_t first = task.chunk.column + tap.offset;
      return first >= 0 && first + task.chunk.columns <= g_.view.source_w;
    };
    const int64_t farthest = std::max(std::abs(down.taps[block.row].offset),
                                      std::abs(down.taps[block.row + block.rows - 1].offset));
    const int64_t reach = block.channels * strides.c + farthest * strides.h + g_.view.source_w;
    return bytes_ == static_cast<int64_t>(sizeof(Acc)) && strides.w == 1 &&
           across.source_step == 1 && is_inside(across.taps[block.column]) &&
           is_inside(across.taps[block.column + block.columns - 1]) &&
           reach <= std::numeric_limits<int32_t>::max();
  }

  void locate_source(const GatherTask& task, Product& product, int32_t* offsets) const {
    const DepthBlock& block = product.block;
    const AxisPhase& down = g_.view.rows[task.row_phase];
    const AxisPhase& across = g_.view.columns[task.column_phase];
    const SourcePlanes planes = source_planes(task, block);
    product.pitch = planes.row_stride * down.source_step;
    product.source = reinterpret_cast<const Acc*>(planes.data) + task.chunk.row * product.pitch +
                     task.chunk.column;
    for (int64_t c = 0; c < block.channels; ++c) {
      for (int64_t r = 0; r < block.rows; ++r) {
        for (int64_t s = 0; s < block.columns; ++s) {
          *offsets++ = static_cast<int32_t>(c * planes.channel_stride +
                                            down.taps[block.row + r].offset * planes.row_stride +
                                            across.taps[block.column + s].offset);
        }
      }
    }
  }

  // A single target channel: all rows of the chunk at once.
  void multiply_plane(const GatherTask& task, const Product& product) const {
    const LatticeChunk& chunk = task.chunk;
    kernels_.multiply_plane({chunk.rows, chunk.columns, product.pitch}, product.depth,
                            product.weights, product.source, product.offsets, product.sums);
    const int64_t row_step = target_row_stride(task);
    const bool dense = row_step == chunk.columns * target_column_stride(task);
    const int64_t rows_at_once = dense ? chunk.rows : 1;  // rows stored as one run
    TileColumns columns;
    columns.segment_count = 1;
    for (int64_t row = 0; row < chunk.rows; row += rows_at_once) {
      columns.segments[0] = {0, row * row_step, 0,
                             static_cast<int32_t>(rows_at_once * chunk.columns)};
      store_columns(task, 0, 1, columns, product.sums + row * chunk.columns, chunk.columns);
    }
  }

  // Kernel rows [first, last) of a block, counted from its first.
  struct TapRange {
    int64_t first, last;
  };

  // The kernel rows that read the source, not its padding, for a row of the chunk.
  TapRange find_taps_inside(const GatherTask& task, const DepthBlock& block, int64_t row) const {
    const AxisPhase& phase = g_.view.rows[task.row_phase];
    const int64_t origin = (task.chunk.row + row) * phase.source_step;
    const auto is_inside = [&](int64_t tap) {
      const int64_t at = origin + phase.taps[block.row + tap].offset;
      return at >= 0 && at < g_.view.source_h;
    };
    TapRange range{0, block.rows};
    while (range.first < range.last && !is_inside(range.first)) ++range.first;
    while (range.first < range.last && !is_inside(range.last - 1)) --range.last;
    return range;
  }

  static TermBlocks find_terms(const DepthBlock& block, const TapRange& taps) {
    const int64_t rows = taps.last - taps.first;
    if (rows == block.rows) return {1, block.depth(), block.depth()};
    return {block.channels, rows * block.columns, block.rows * block.columns};
  }

  // Vectors run over target channels, in runs of pixels of one row. Kernel rows in the padding are
  // left out; small images and input gradients have many of them. The accumulators are
  // [panel][pixel][channel]; a product that is alone needs those of one run only.
  void multiply_runs(const GatherTask& task, const Product& product, Acc* scratch) const {
    const int64_t panels = weights_.count_panels(task.channels);
    const int64_t runs = ceil_div(task.chunk.columns, kMaxTileColumns);
    TileColumns columns;
    columns.segment_count = 1;
    for (int64_t index = 0; index < task.chunk.rows * runs; ++index) {
      const int64_t row = index / runs, run = index % runs;
      const int64_t column = run * task.chunk.columns / runs;
      const int64_t count = (run + 1) * task.chunk.columns / runs - column;
      const int64_t target = row * target_row_stride(task) + column * target_column_stride(task);
      const TapRange taps = find_taps_inside(task, product.block, row);
      const int64_t skipped = taps.first * product.block.columns;
      const TermBlocks terms = find_terms(product.block, taps);
      columns.segments[0] = {0, target, 0, static_cast<int32_t>(count)};
      for (int64_t p = 0; p < panels; ++p) {
        const int64_t m = weights_.find_panel(task.channels, panels, p);
        const int vectors = weights_.count_vectors(task.channels - m);
        const int64_t width = int64_t{vectors} * kernels_.lanes;
        Acc* sums = product.sums;
        if (!product.alone()) {
          sums += m * task.chunk.rows * task.chunk.columns +
                  (row * task.chunk.columns + column) * width;
        }
        const int64_t tiles = ceil_div(count, kernels_.max_run_pixels[std::min(vectors - 1, 2)]);
        for (int64_t t = 0; t < tiles; ++t) {
          const int64_t pixel = t * count / tiles;
          const int pixels = static_cast<int>((t + 1) * count / tiles - pixel);
          kernels_.multiply_run(pixels, vectors, terms,
                                product.weights + m * product.depth + skipped * width,
                                product.source + row * product.pitch + column + pixel,
                                product.offsets + skipped, !product.first, sums + pixel * width);
        }
        if (product.last) store_run(task, m, width, columns, sums, scratch);
      }
    }
  }

  // Stores the accumulators [pixel][channel] of a run. If the target's channels are far apart, they
  // are transposed first.
  void store_run(const GatherTask& task, int64_t channel, int64_t channels,
                 const TileColumns& columns, Acc* sums, Acc* scratch) const {
    if (g_.view.target_strides.c == 1) {
      return store_columns(task, channel, channels, columns, sums, channels, true);
    }
    const int64_t pixels = round_up(columns.segments[0].count, kernels_.lanes);
    kernels_.transpose(sums, channels, pixels, channels, scratch, kMaxTileColumns);
    store_columns(task, channel, channels, columns, scratch, kMaxTileColumns);
  }

  // Vectors run over pixels, of several rows if they are packed or narrow.
  void multiply_columns(const GatherTask& task, const Product& product, Acc* panel) const {
    const int64_t depth = product.depth;
    int32_t panel_offsets[kMaxDepth];
    const ColumnTiling tiling =
        make_tiling(g_.packed, task.chunk, product.pitch, kernels_.lanes, weights_.tile_vectors());
    const int64_t width = tiling.width();
    if (g_.packed) {
      for (int64_t k = 0; k < depth; ++k) panel_offsets[k] = static_cast<int32_t>(k * width);
    }
    // All channels for each tile, if it is packed or if the target's channels are neighbours. Else
    // a few channels for all tiles, so that the target is written in long runs.
    const int64_t panels = weights_.count_panels(task.channels);
    const int64_t streams = problem_.epilogue.has_residual ? 2 : 1;
    const int64_t panel_step = g_.packed || g_.view.target_strides.c == 1
                                   ? panels
                                   : std::min<int64_t>(panels, kPanelsInPlace / streams);
    TileColumns columns;
    for (int64_t first_panel = 0; first_panel < panels; first_panel += panel_step) {
      const int64_t last_panel = std::min(first_panel + panel_step, panels);
      const int64_t channel = first_panel * task.channels / panels;
      const int64_t channel_end = last_panel * task.channels / panels;
      for (int64_t tile = 0; tile < tiling.tiles; ++tile) {
        describe_tile(tiling, tile, target_row_stride(task), target_column_stride(task), columns);
        const Acc* vectors[kMaxTileVectors];
        for (int v = 0; v < weights_.tile_vectors(); ++v) {
          vectors[v] =
              g_.packed ? panel + v * kernels_.lanes : product.source + columns.vector_start[v];
        }
        if (g_.packed) {
          kernels_.pack_panel(product.source, product.offsets, depth, columns.segments,
                              columns.segment_count, width, panel);
        }
        // [tile][channel][column]. If this block has the whole depth, there is one tile at a time.
        Acc* tile_sums =
            product.sums + (product.alone() ? 0 : (tile * task.channels + channel) * width);
        for (int64_t p = first_panel; p < last_panel; ++p) {
          const int64_t m = p * task.channels / panels;
          const int64_t rows = (p + 1) * task.channels / panels - m;
          kernels_.multiply_tile(static_cast<int>(rows), weights_.tile_vectors(), depth,
                                 product.weights + m * depth, vectors,
                                 g_.packed ? panel_offsets : product.offsets, !product.first,
                                 tile_sums + (m - channel) * width);
        }
        if (product.last)
          store_columns(task, channel, channel_end - channel, columns, tile_sums, width);
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
                     const TileColumns& columns, Acc* sums, int64_t pitch,
                     bool channels_are_contiguous = false) const {
    const Strides& strides = g_.view.target_strides;
    const AxisPhase& rows = g_.view.rows[task.row_phase];
    const AxisPhase& across = g_.view.columns[task.column_phase];
    const int64_t channel = task.group * g_.view.target_channels + task.channel + first_channel;
    const int64_t row = rows.target_start + task.chunk.row * rows.target_step;
    const int64_t column = across.target_start + task.chunk.column * across.target_step;
    TileStore store;
    const int64_t offset =
        (task.image * strides.n + channel * strides.c + row * strides.h + column * strides.w) *
        bytes_;
    store.target = target_ + offset;
    if (problem_.pass == Pass::kForward) {
      store.bias = bias_ ? bias_ + channel * bytes_ : nullptr;
      store.residual = problem_.epilogue.has_residual ? residual_ + offset : nullptr;
      store.epilogue = problem_.epilogue;
    }
    store.row_stride = strides.c;
    store.column_stride = target_column_stride(task);
    store.segments = columns.segments;
    store.segment_count = columns.segment_count;
    store.rows = channels;
    store.pitch = pitch;
    store.rows_are_contiguous = channels_are_contiguous;
    kernels_.store_tile(sums, store);
  }

  // Target pixels that no tap reaches are zero.
  void store_zeros(const GatherTask& task, Acc* slice) const {
    const ColumnTiling tiling =
        make_tiling(true, task.chunk, 0, kernels_.lanes, weights_.tile_vectors());
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
  const GatherWeights<Acc> weights_;
  const char* bias_;
  const char* residual_;
  Acc* shared_;
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
