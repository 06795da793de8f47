#include <algorithm>
#include <vector>

#include "engines/cpu/driver/drivers.h"

namespace convx {
namespace {

template <typename Acc>
class WeightLaunch {
 public:
  WeightLaunch(const ConvProblem& problem, const Plan& plan, const Buffers& buffers)
      : problem_(problem),
        g_(cpu_geometry_of<WeightGeometry>(plan)),
        kernels_(find_kernels<Acc>(problem.dtype)),
        bytes_(size_of(problem.dtype)),
        x_(static_cast<const char*>(buffers.x)),
        y_(static_cast<const char*>(buffers.y)),
        w_(static_cast<char*>(buffers.w)),
        parts_(static_cast<Acc*>(buffers.workspace)) {
    const int64_t slots_bytes =
        plan.workspace_bytes - g_.part_sums * static_cast<int64_t>(sizeof(Acc));
    slots_ = slots_bytes / (g_.slot_elements() * static_cast<int64_t>(sizeof(Acc)));
    for_each_depth_block(g_.box, 0, g_.view.source_channels, problem.R, problem.S,
                         [&](const DepthBlock& block) { blocks_.push_back(block); });
  }

  void run(TaskRunner runner) {
    runner.slots = static_cast<int>(std::min<int64_t>(runner.slots, slots_));
    const int64_t tasks = problem_.groups * g_.filter_blocks * g_.depth_blocks;
    run_tasks(runner, g_.split * tasks, [&](int slot, int64_t index) {
      const WeightTask task = find_task(index % tasks);
      Acc* slice = find_slice(slot);
      Acc* sums = g_.split > 1 ? parts_ + index * g_.task_sums : slice;
      sum_part(task, index / tasks, slice, sums);
      if (g_.split == 1) store_sums(task, sums);
    });
    if (g_.split == 1) return;
    run_tasks(runner, tasks, [&](int slot, int64_t index) {
      const WeightTask task = find_task(index);
      Acc* sums = find_slice(slot);
      const int64_t count = count_sums(task);
      std::copy_n(parts_ + index * g_.task_sums, count, sums);
      for (int64_t part = 1; part < g_.split; ++part) {
        const Acc* other = parts_ + (part * tasks + index) * g_.task_sums;
        for (int64_t j = 0; j < count; ++j) sums[j] += other[j];
      }
      store_sums(task, sums);
    });
  }

 private:
  struct WeightTask {
    int64_t group;
    int64_t filter, filters;  // within the group
    const DepthBlock* block;
  };

  WeightTask find_task(int64_t index) const {
    WeightTask task;
    task.block = &blocks_[index % g_.depth_blocks];
    task.filter = index / g_.depth_blocks % g_.filter_blocks * g_.tile.m;
    task.filters = std::min(g_.tile.m, problem_.filters_per_group() - task.filter);
    task.group = index / g_.depth_blocks / g_.filter_blocks;
    return task;
  }

  Acc* find_slice(int slot) const { return parts_ + g_.part_sums + slot * g_.slot_elements(); }

  void sum_part(const WeightTask& task, int64_t part, Acc* slice, Acc* sums) const {
    const DepthBlock& block = *task.block;
    std::fill_n(sums, count_sums(task), Acc{0});
    const StagedShape shape =
        make_staged_shape(g_.row_layouts[0][block.row / g_.box.rows],
                          g_.column_layouts[0][block.column / g_.box.columns], g_.tile.k);
    int32_t offsets[kMaxDepth];
    fill_tap_offsets(shape, block.channels, offsets);
    Acc* y = slice + g_.slot_sums;
    Acc* staged = y + g_.slot_y;
    Acc* panel = staged + g_.slot_staged;
    const int64_t per_image = g_.row_chunks * g_.column_chunks;
    for (int64_t index = part * g_.chunks / g_.split; index < (part + 1) * g_.chunks / g_.split;
         ++index) {
      const int64_t image = index / per_image;
      LatticeChunk chunk;
      chunk.row = index % per_image / g_.column_chunks * g_.tile.n;
      chunk.rows = std::min(g_.tile.n, problem_.P - chunk.row);
      chunk.column = index % g_.column_chunks * g_.tile.k;
      chunk.columns = std::min(g_.tile.k, problem_.Q - chunk.column);
      stage_channels(kernels_, find_source(task, image), shape, chunk, block.channels, staged);
      if (g_.packed) {
        stage_y(task, image, chunk, chunk.columns, g_.padded_pixels, y);
        transpose_y(task, chunk, y, panel);
        add_products(task, {chunk.rows, chunk.columns, shape.pitch}, panel, staged, offsets, sums);
      } else {
        // Rows of y have the pitch of the staged image.
        const int64_t y_stride = chunk.rows * shape.pitch;
        stage_y(task, image, chunk, shape.pitch, y_stride, y);
        const int lanes = kernels_.lanes;
        add_dots(task, {chunk.rows, chunk.columns / lanes, chunk.columns % lanes, shape.pitch}, y,
                 y_stride, staged, offsets, sums);
      }
    }
  }

  SourcePlanes find_source(const WeightTask& task, int64_t image) const {
    const Strides& strides = problem_.x_strides;
    const int64_t channel = task.group * g_.view.source_channels + task.block->channel;
    return {x_ + (image * strides.n + channel * strides.c) * bytes_,
            bytes_,
            problem_.H,
            problem_.W,
            strides.c,
            strides.h,
            strides.w};
  }

  // Stages y of the chunk as [filter][row][column], with the given pitches in elements.
  void stage_y(const WeightTask& task, int64_t image, const LatticeChunk& chunk, int64_t row_pitch,
               int64_t filter_pitch, Acc* y) const {
    const Strides& strides = problem_.y_strides;
    const int64_t filter = task.group * problem_.filters_per_group() + task.filter;
    const int64_t start =
        image * strides.n + filter * strides.c + chunk.row * strides.h + chunk.column * strides.w;
    RowCopy copy;
    copy.rows = chunk.rows;
    copy.columns = chunk.columns;
    copy.row_stride = strides.h;
    copy.column_stride = strides.w;
    copy.pitch = row_pitch;
    if (row_pitch == chunk.columns && strides.h == chunk.columns * strides.w) {  // one long row
      copy.columns *= copy.rows;
      copy.rows = 1;
    }
    for (int64_t i = 0; i < task.filters; ++i) {
      copy.source = y_ + (start + i * strides.c) * bytes_;
      kernels_.load_rows(copy, y + i * filter_pitch);
    }
  }

  // panel is [pixel][filter], with zeros for the filters that fill up the last vector.
  void transpose_y(const WeightTask& task, const LatticeChunk& chunk, Acc* y, Acc* panel) const {
    const int64_t filters = round_up(task.filters, kernels_.lanes);
    const int64_t pixels = chunk.rows * chunk.columns;
    const int64_t padded = round_up(pixels, kernels_.lanes);
    for (int64_t i = 0; i < task.filters; ++i) {
      std::fill_n(y + i * g_.padded_pixels + pixels, padded - pixels, Acc{0});
    }
    std::fill_n(y + task.filters * g_.padded_pixels, (filters - task.filters) * g_.padded_pixels,
                Acc{0});
    kernels_.transpose(y, g_.padded_pixels, filters, padded, panel, g_.padded_filters);
  }

  // sums is [depth][filter], with a pitch of padded_filters.
  void add_products(const WeightTask& task, const PixelRange& range, const Acc* panel,
                    const Acc* staged, const int32_t* offsets, Acc* sums) const {
    const int64_t depth = task.block->depth();
    const int64_t vectors_end = ceil_div(task.filters, kernels_.lanes);
    for (int64_t v = 0; v < vectors_end;) {
      const int64_t left = vectors_end - v;
      const int widest = kernels_.panel_vectors;
      const int vectors = left >= widest ? widest : left >= 2 ? 2 : 1;
      const int64_t most = kernels_.max_pixel_rows[vectors == 1 ? 0 : vectors == 2 ? 1 : 2];
      const int64_t tiles = ceil_div(depth, most);
      const int64_t filter = v * kernels_.lanes;
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t j = t * depth / tiles;
        const int rows = static_cast<int>((t + 1) * depth / tiles - j);
        kernels_.multiply_pixels(rows, vectors, range, staged, offsets + j, panel + filter,
                                 g_.padded_filters, sums + j * g_.padded_filters + filter);
      }
      v += vectors;
    }
  }

  // sums is [filter][depth].
  void add_dots(const WeightTask& task, const DotRange& range, const Acc* y, int64_t y_stride,
                const Acc* staged, const int32_t* offsets, Acc* sums) const {
    const int64_t depth = task.block->depth();
    for (int64_t i = 0; i < task.filters;) {
      const int64_t left = task.filters - i;
      const int rows = left >= 4 ? 4 : left >= 2 ? 2 : 1;
      const int64_t tiles = ceil_div(depth, kernels_.max_dot_columns[rows / 2]);
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t j = t * depth / tiles;
        const int columns = static_cast<int>((t + 1) * depth / tiles - j);
        kernels_.dot_tile(rows, columns, range, y + i * y_stride, y_stride, staged, offsets + j,
                          sums + i * depth + j, depth);
      }
      i += rows;
    }
  }

  int64_t count_sums(const WeightTask& task) const {
    return task.block->depth() * (g_.packed ? g_.padded_filters : task.filters);
  }

  void store_sums(const WeightTask& task, Acc* sums) const {
    const DepthBlock& block = *task.block;
    const Strides& strides = problem_.w_strides;
    const int64_t filter = task.group * problem_.filters_per_group() + task.filter;
    // The terms of a run are evenly spaced in w: kernel columns, or the whole block if w is dense.
    int64_t run = block.columns;
    if (block.rows == 1 || strides.h == problem_.S * strides.w) {
      run *= block.rows;
      if (block.channels == 1 || strides.c == problem_.taps() * strides.w) run *= block.channels;
    }
    TileSegment segment{0, 0, 0, static_cast<int32_t>(g_.packed ? task.filters : run)};
    TileStore store;
    store.segments = &segment;
    store.segment_count = 1;
    store.rows = g_.packed ? run : task.filters;
    store.row_stride = g_.packed ? strides.w : strides.n;
    store.column_stride = g_.packed ? strides.n : strides.w;
    store.pitch = g_.packed ? g_.padded_filters : block.depth();
    for (int64_t j = 0; j < block.depth(); j += run) {
      const int64_t channel = block.channel + j / (block.rows * block.columns);
      const int64_t row = block.row + j / block.columns % block.rows;
      store.target = w_ + (filter * strides.n + channel * strides.c + row * strides.h +
                           block.column * strides.w) *
                              bytes_;
      kernels_.store_tile(sums + (g_.packed ? j * g_.padded_filters : j), store);
    }
  }

  const ConvProblem& problem_;
  const WeightGeometry& g_;
  const CpuKernels<Acc>& kernels_;
  const int64_t bytes_;
  const char* x_;
  const char* y_;
  char* w_;
  Acc* parts_;
  int64_t slots_;
  std::vector<DepthBlock> blocks_;
};

}  // namespace

void launch_weight(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                   const TaskRunner& runner) {
  if (problem.dtype == DType::kFloat64) {
    WeightLaunch<double>(problem, plan, buffers).run(runner);
  } else {
    WeightLaunch<float>(problem, plan, buffers).run(runner);
  }
}

}  // namespace convx
