#include <algorithm>
#include <vector>

#include "core/gather_view.h"
#include "core/text.h"
#include "engines/cpu/driver/drivers.h"
#include "engines/cpu/kernels/cpu_kernels.h"

namespace convx {
namespace {

constexpr int64_t kChannelsPerTask = 128;
constexpr int64_t kRowsPerTask = 8;
constexpr int64_t kWantedTasks = 64;
// Cycles measured on a Sapphire Rapids core with AVX-512: loads and one multiply-add per tap and
// vector.
constexpr double kCyclesPerTapVector = 1.5;
constexpr double kCyclesPerTapVector16Bit = 6;
constexpr double kCyclesPerUs = 2600;

// Lattice indices [first, last) whose source position lies inside the image.
struct IndexRange {
  int64_t first, last;
};

IndexRange find_valid(int64_t offset, int64_t step, int64_t count, int64_t source_extent) {
  const int64_t first = offset >= 0 ? 0 : ceil_div(-offset, step);
  const int64_t last = source_extent > offset ? ceil_div(source_extent - offset, step) : 0;
  return {std::min(first, count), std::clamp(last, std::min(first, count), count)};
}

template <typename Acc>
class ChannelwiseLaunch {
 public:
  ChannelwiseLaunch(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                    const TaskRunner& runner)
      : p_(problem),
        plan_(plan),
        buffers_(buffers),
        runner_(runner),
        kernels_(find_kernels<Acc>(problem.dtype)),
        bytes_(size_of(problem.dtype)),
        scratch_(static_cast<Acc*>(buffers.workspace)) {}

  void run_gather() {
    if (p_.N == 0) return;
    pack_weights();
    const GatherView& view = cpu_geometry_of<ChannelwiseGeometry>(plan_).view;
    const bool forward = p_.pass == Pass::kForward;
    const int64_t blocks = ceil_div(p_.C, plan_.tile.m);
    const int64_t row_blocks = ceil_div(view.target_h, plan_.tile.n);
    run_tasks(runner_, p_.N * row_blocks * blocks, [&](int, int64_t index) {
      const int64_t channel = index % blocks * plan_.tile.m;
      const int64_t image = index / blocks / row_blocks;
      const int64_t first = index / blocks % row_blocks * plan_.tile.n;
      const int64_t last = std::min(first + plan_.tile.n, view.target_h);
      ChannelGather gather;
      gather.channels = std::min(plan_.tile.m, p_.C - channel);
      gather.weights = scratch_ + channel;
      if (forward && buffers_.bias) gather.bias = at(buffers_.bias, channel);
      if (forward) gather.epilogue = p_.epilogue;
      const void* source = forward ? buffers_.x : buffers_.y;
      void* target = forward ? buffers_.y : buffers_.x;
      gather.source = at(source, image * view.source_strides.n + channel);
      gather.target = at(target, image * view.target_strides.n + channel);
      if (gather.epilogue.has_residual) {
        gather.residual = at(buffers_.residual, image * view.target_strides.n + channel);
      }
      std::vector<int64_t> offsets(2 * p_.taps());
      for (int64_t row = first; row < last; ++row) gather_row(view, row, gather, offsets);
    });
  }

  void run_weight() {
    const int64_t blocks = ceil_div(p_.C, plan_.tile.m);
    const int64_t rows = p_.N * p_.P;
    std::fill_n(scratch_, plan_.split * p_.taps() * p_.C, Acc{0});
    run_tasks(runner_, plan_.split * blocks, [&](int, int64_t index) {
      const int64_t part = index / blocks;
      const int64_t channel = index % blocks * plan_.tile.m;
      Acc* sums = scratch_ + part * p_.taps() * p_.C + channel;
      for (int64_t row = part * rows / plan_.split; row < (part + 1) * rows / plan_.split; ++row) {
        add_row(row / p_.P, row % p_.P, channel, sums);
      }
    });
    for (int64_t part = 1; part < plan_.split; ++part) {
      const Acc* other = scratch_ + part * p_.taps() * p_.C;
      for (int64_t j = 0; j < p_.taps() * p_.C; ++j) scratch_[j] += other[j];
    }
    TileSegment segment{0, 0, 0, static_cast<int32_t>(p_.C)};
    TileStore store;
    store.segments = &segment;
    store.segment_count = 1;
    store.rows = p_.S;
    store.row_stride = p_.w_strides.w;
    store.column_stride = p_.w_strides.n;
    store.pitch = p_.C;
    for (int64_t r = 0; r < p_.R; ++r) {
      store.target = at(buffers_.w, r * p_.w_strides.h);
      kernels_.store_tile(scratch_ + r * p_.S * p_.C, store);
    }
  }

 private:
  void* at(void* base, int64_t offset) const { return static_cast<char*>(base) + offset * bytes_; }
  const void* at(const void* base, int64_t offset) const {
    return static_cast<const char*>(base) + offset * bytes_;
  }

  // Packed weights: [tap][channel].
  void pack_weights() const {
    RowCopy copy;
    copy.rows = p_.S;
    copy.columns = p_.C;
    copy.row_stride = p_.w_strides.w;
    copy.column_stride = p_.w_strides.n;
    copy.pitch = p_.C;
    for (int64_t r = 0; r < p_.R; ++r) {
      copy.source = at(buffers_.w, r * p_.w_strides.h);
      kernels_.load_rows(copy, scratch_ + r * p_.S * p_.C);
    }
  }

  // `gather` describes the image and channels. `offsets` has room for two entries per tap.
  void gather_row(const GatherView& view, int64_t target_row, ChannelGather gather,
                  std::vector<int64_t>& offsets) const {
    const AxisPhase& down = view.rows[target_row % view.rows.size()];
    const int64_t i = (target_row - down.target_start) / down.target_step;
    void* target = gather.target;
    const void* residual = gather.residual;
    for (const AxisPhase& across : view.columns) {
      gather.source_stride = across.source_step * view.source_strides.w;
      gather.target_stride = across.target_step * view.target_strides.w;
      IndexRange inside{0, across.count};
      for (const AxisTap& tap : across.taps) {
        const IndexRange valid =
            find_valid(tap.offset, across.source_step, across.count, view.source_w);
        inside = {std::max(inside.first, valid.first), std::min(inside.last, valid.last)};
      }
      for (int64_t j = 0; j < across.count;) {
        const bool all = j >= inside.first && j < inside.last;
        gather.pixels = all ? inside.last - j : 1;
        gather.source_offsets = offsets.data();
        gather.weight_offsets = offsets.data() + p_.taps();
        gather.taps = list_taps(view, down, i, across, j, offsets);
        const int64_t offset =
            target_row * view.target_strides.h +
            (across.target_start + j * across.target_step) * view.target_strides.w;
        gather.target = at(target, offset);
        if (residual) gather.residual = at(residual, offset);
        kernels_.gather_channels(gather);
        j += gather.pixels;
      }
    }
  }

  // Lists the taps that reach lattice point (i, j), as source offsets and weight offsets.
  int64_t list_taps(const GatherView& view, const AxisPhase& down, int64_t i,
                    const AxisPhase& across, int64_t j, std::vector<int64_t>& offsets) const {
    int64_t count = 0;
    for (const AxisTap& r : down.taps) {
      const int64_t row = i * down.source_step + r.offset;
      if (row < 0 || row >= view.source_h) continue;
      for (const AxisTap& s : across.taps) {
        const int64_t column = j * across.source_step + s.offset;
        if (column < 0 || column >= view.source_w) continue;
        offsets[count] = row * view.source_strides.h + column * view.source_strides.w;
        offsets[p_.taps() + count] = (r.tap * p_.S + s.tap) * p_.C;
        ++count;
      }
    }
    return count;
  }

  // sums is [tap][channel], with a pitch of p_.C.
  void add_row(int64_t image, int64_t row, int64_t channel, Acc* sums) const {
    ChannelDots dots;
    dots.channels = std::min(plan_.tile.m, p_.C - channel);
    dots.x_stride = p_.stride.w * p_.x_strides.w;
    dots.y_stride = p_.y_strides.w;
    dots.tap_stride = p_.dilation.w * p_.x_strides.w;
    dots.sums_pitch = p_.C;
    const int64_t y = image * p_.y_strides.n + row * p_.y_strides.h + channel;
    for (int64_t r = 0; r < p_.R; ++r) {
      const int64_t x_row = row * p_.stride.h - p_.pad.top + r * p_.dilation.h;
      if (x_row < 0 || x_row >= p_.H) continue;
      const int64_t x = image * p_.x_strides.n + x_row * p_.x_strides.h + channel;
      for (int64_t s = 0; s < p_.S; s += kMaxChannelTaps) {
        const int64_t s_end = std::min<int64_t>(s + kMaxChannelTaps, p_.S);
        add_kernel_row(x, y, s, s_end, sums + (r * p_.S) * p_.C, dots);
      }
    }
  }

  // Pixels that all taps [s, s_end) reach are summed at once, pixels at the edges tap by tap.
  void add_kernel_row(int64_t x, int64_t y, int64_t s, int64_t s_end, Acc* sums,
                      ChannelDots dots) const {
    auto offset_of = [&](int64_t tap) { return tap * p_.dilation.w - p_.pad.left; };
    auto add = [&](int64_t tap, int64_t taps, int64_t first, int64_t last) {
      if (first >= last) return;
      dots.taps = taps;
      dots.pixels = last - first;
      dots.x = at(buffers_.x, x + (first * p_.stride.w + offset_of(tap)) * p_.x_strides.w);
      dots.y = at(buffers_.y, y + first * p_.y_strides.w);
      kernels_.dot_channels(dots, sums + tap * p_.C);
    };
    const IndexRange low = find_valid(offset_of(s), p_.stride.w, p_.Q, p_.W);
    const IndexRange high = find_valid(offset_of(s_end - 1), p_.stride.w, p_.Q, p_.W);
    const int64_t first = std::max(low.first, high.first);
    const int64_t last = std::max(first, std::min(low.last, high.last));
    add(s, s_end - s, first, last);
    for (int64_t tap = s; tap < s_end; ++tap) {
      const IndexRange valid = find_valid(offset_of(tap), p_.stride.w, p_.Q, p_.W);
      add(tap, 1, valid.first, std::min(valid.last, first));
      add(tap, 1, std::max(valid.first, last), valid.last);
    }
  }

  const ConvProblem& p_;
  const Plan& plan_;
  const Buffers& buffers_;
  const TaskRunner& runner_;
  const CpuKernels<Acc>& kernels_;
  const int64_t bytes_;
  Acc* scratch_;
};

template <typename Acc>
void launch_as(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
               const TaskRunner& runner) {
  ChannelwiseLaunch<Acc> launch(problem, plan, buffers, runner);
  if (problem.pass == Pass::kWeightGrad) {
    launch.run_weight();
  } else {
    launch.run_gather();
  }
}

}  // namespace

bool is_channelwise(const ConvProblem& p) {
  auto has_neighbours = [](const Strides& strides) { return strides.c == 1 && strides.w != 1; };
  return p.groups == p.C && p.groups == p.K && p.C >= kMaxVectorLanes / 2 &&
         has_neighbours(p.x_strides) && has_neighbours(p.y_strides) &&
         p.C * p.taps() * accumulate_bytes(p.dtype) <= kMaxSharedBytes;
}

void ChannelwiseGeometry::describe(Text& out) const {
  out << "tile " << tile.m << " channels x " << tile.n << " rows";
  describe_split(out, split);
  out << ", vectors over channels";
}

Plan plan_channelwise(const ConvProblem& p, const DeviceCaps& caps) {
  Plan plan;
  plan.engine = EngineId::kCpuDirect;
  plan.tile = {std::min(p.C, kChannelsPerTask), kRowsPerTask, 0};
  const int64_t weights = p.C * p.taps() * accumulate_bytes(p.dtype);
  const int64_t blocks = ceil_div(p.C, plan.tile.m);
  ChannelwiseGeometry geometry;
  if (p.pass == Pass::kWeightGrad) {
    plan.split = std::min({ceil_div(kWantedTasks, blocks), ceil_div(p.N * p.P, kRowsPerTask),
                           kMaxSharedBytes / weights});
    plan.split = std::max<int64_t>(plan.split, 1);
  } else {
    geometry.view = make_gather_view(p);
  }
  geometry.tile = plan.tile, geometry.split = plan.split;
  plan.geometry = make_geometry(CpuPlan{std::move(geometry)});
  plan.workspace_bytes = plan.split * weights;
  const double lanes = static_cast<double>(caps.simd_bytes) / accumulate_bytes(p.dtype);
  const double per_vector = size_of(p.dtype) == 2 ? kCyclesPerTapVector16Bit : kCyclesPerTapVector;
  const double products = static_cast<double>(p.N * p.P) * p.Q * p.K * p.taps();
  plan.predicted_us = products / lanes * per_vector / kCyclesPerUs / std::max(caps.threads, 1) + 5;
  return plan;
}

void launch_channelwise(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
                        const TaskRunner& runner) {
  if (problem.dtype == DType::kFloat64) {
    launch_as<double>(problem, plan, buffers, runner);
  } else {
    launch_as<float>(problem, plan, buffers, runner);
  }
}

}  // namespace convx
