// Plans of cuda_col2im: the fastest shape by a cost model, and what the engine refuses.
#include "engines/cuda/input_grad/col2im_geometry.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/arithmetic.h"
#include "engines/cuda/cuda_engines.h"
#include "planning/device_rates.h"
#include "planning/refusals.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

// Derived from counts of instructions and bytes for an H200.
constexpr double kCyclesPerUs = 1700;
// How much longer steps take than their counts say: seed63 and a stem on an H200
// (2026-11-18), in 16 bits and in float32.
constexpr double kHalfStepFactor = 2.15, kFloatStepFactor = 1.5;
constexpr double kInstructionCycles = 5;  // between two instructions of a warp
constexpr double kSharedBytesPerCycle = 128;
constexpr double kLoadCycles = 300;  // waits of a loader for a stage
constexpr double kOverlapShare = 0.2;
// Until they have been measured, layers of several channel tiles are left to engines that have
// been, unless the difference is large.
constexpr double kTilesMargin = 1.4;
constexpr double kStepCycles = 400;        // barriers and latencies of a step
constexpr double kBlockUs = 6;             // the launches, and loading the filters
constexpr double kBytesPerUs = 3.6e6;      // from memory
constexpr double kNearBytesPerUs = 4.5e6;  // from L2

class Fitter {
 public:
  Fitter(const ConvProblem& problem, const DeviceCaps& caps, TensorMath math)
      : p_(problem), caps_(caps), math_(math), components_(count_planes(math)) {}

  std::optional<Col2imShape> fit() {
    if (!set_axes()) return {};
    const int64_t channels = p_.channels_per_group();
    std::optional<Col2imShape> best;
    const int vector = channels >= 4 ? 4 : 1;
    for (int64_t tile = vector; tile < channels + vector; tile += vector) {
      const auto visit_all = [&](const auto& widths) {
        for (const int columns : widths) {
          const std::optional<Col2imShape> shape = fit_tile(tile, vector, columns);
          if (shape && (!best || shape->microseconds < best->microseconds)) best = shape;
        }
      };
      components_ > 1 ? visit_all(kCol2imSplitColumns) : visit_all(kCol2imColumns);
    }
    return best;
  }

 private:
  // Sets what does not depend on the tile. Returns false if the halo is too wide for a strip.
  bool set_axes() {
    Col2imGeometry& g = g_;
    g.y_strides = p_.y_strides, g.x_strides = p_.x_strides;
    g.filters = narrow(p_.filters_per_group()), g.channels = narrow(p_.channels_per_group());
    g.height = narrow(p_.H), g.width = narrow(p_.W);
    g.out_height = narrow(p_.P), g.out_width = narrow(p_.Q);
    g.kernel_rows = narrow(p_.R), g.kernel_columns = narrow(p_.S);
    g.stride_h = narrow(p_.stride.h), g.stride_w = narrow(p_.stride.w);
    g.dilation_h = narrow(p_.dilation.h), g.dilation_w = narrow(p_.dilation.w);
    g.pad_top = narrow(p_.pad.top), g.pad_left = narrow(p_.pad.left);
    const int64_t reach_h = (p_.R - 1) * p_.dilation.h, reach_w = (p_.S - 1) * p_.dilation.w;
    const int64_t halo = round_up(reach_w / p_.stride.w, 2);
    if (halo > kMostHaloPoints || reach_h + p_.stride.h > kMostRingRows ||
        p_.stride.w > kMostStride) {
      return false;
    }
    const int64_t first = p_.pad.left / p_.stride.w / 2 * 2;
    const int64_t points = ceil_div(p_.W + p_.pad.left - first * p_.stride.w, p_.stride.w);
    g.halo_points = narrow(halo), g.first_point = narrow(first);
    g.strip_points = narrow(std::min(kStripPixels - halo, round_up(points, 2)));
    g.strips = narrow(ceil_div(points, g.strip_points));
    g.first_step = narrow(p_.pad.top / p_.stride.h);
    g.steps = narrow((p_.H - 1 + p_.pad.top) / p_.stride.h - g.first_step + 1);
    g.halo_steps = narrow(reach_h / p_.stride.h);
    g.ring_rows = narrow(std::max(reach_h + 1, p_.stride.h));
    g.tap_step = narrow(p_.stride.w / std::gcd(p_.stride.w, p_.dilation.w));
    g.taps = narrow(ceil_div(p_.S, g.tap_step));
    g.depth_chunks = narrow(ceil_div(p_.filters_per_group(), kDepthFilters));
    return true;
  }

  std::optional<Col2imShape> fit_tile(int64_t channels, int vector, int columns) {
    Col2imGeometry g = g_;
    const int64_t row_columns = p_.S * channels;
    if (row_columns > columns) return {};
    g.tile_channels = narrow(channels), g.vector = vector, g.columns = columns;
    g.channel_tiles = narrow(ceil_div(p_.channels_per_group(), channels));
    g.chunks = narrow(ceil_div(p_.R, std::min(p_.R, columns / row_columns)));
    g.chunk_rows = narrow(ceil_div(p_.R, g.chunks));
    g.chunks = narrow(ceil_div(p_.R, g.chunk_rows));
    g.chunk_columns = narrow(g.chunk_rows * row_columns);
    g.atoms = narrow(ceil_div(g.chunk_columns, kAtomColumns));
    // MMAs read all their columns; behind the last chunk there are the stages of dY.
    if (columns - g.atoms * kAtomColumns >= kAtomColumns && columns > kCol2imColumns[0]) return {};
    const int64_t columns_of_dx = g.unit_columns();
    // The kernel keeps offsets within a strip's row in 32 bits.
    if (channels * p_.x_strides.c + columns_of_dx * p_.x_strides.w > kMostOffset) return {};
    g.units = narrow(g.pairs_quads() ? round_up(columns_of_dx, 4) * g.quads()
                                     : columns_of_dx * g.quads());
    g.pitch = find_pitch(g);
    g.tap_words = g.tap_step * g.tile_channels - g.tap_step * g.dilation_w / g.stride_w * g.pitch;

    const int64_t stage = int64_t{kWorkers} * components_ * kStageBytes;
    const int64_t fixed = 2 * 1024 + components_ * int64_t{g.component_bytes()} +
                          kWorkers * (int64_t{kStripPixels} * g.pitch * 4 + g.ring_bytes()) +
                          g.units * 16 + channels * 8;
    const int64_t stages = std::min<int64_t>((caps_.shared_bytes_per_block - fixed) / stage,
                                             std::max<int64_t>(kMaxStages, 1));
    // Several chunks read all stages of a row again.
    if (fixed > caps_.shared_bytes_per_block || stages < (g.chunks > 1 ? g.depth_chunks : 1)) {
      return {};
    }
    g.stages = narrow(stages);
    g.shared_bytes = narrow(fixed + stages * stage);
    const int64_t behind = columns / kAtomColumns - g.atoms;  // atoms that MMAs read for nothing
    if (components_ * g.component_bytes() + behind * g.atom_bytes() > g.shared_bytes) return {};

    const int64_t tiles = p_.groups * g.channel_tiles;
    const int64_t steps = p_.N * g.strips * g.steps;
    const int64_t least = std::max<int64_t>(2 * g.halo_steps, 2) * kWorkers;  // of a block
    g.tile_blocks =
        narrow(std::clamp<int64_t>(steps / least, 1, std::max<int64_t>(caps_.sm_count / tiles, 1)));
    if (tiles * g.tile_blocks >= kMaxBlocks) return {};
    g.blocks = narrow(tiles * g.tile_blocks);

    Col2imShape shape;
    shape.math = math_, shape.geometry = g;
    shape.packed_bytes = round_up(tiles * components_ * g.component_bytes(), 256);
    if (shape.packed_bytes > caps_.workspace_limit) return {};
    shape.microseconds = predict(g);
    return shape;
  }

  // Units that read T at once must meet different banks: 4 columns of dX by 2 quads of channels, or
  // else 8 columns by one quad.
  static int find_pitch(const Col2imGeometry& g) {
    int pitch = narrow(round_up(g.chunk_columns, 8));
    if (g.pairs_quads()) return pitch % 16 == 8 ? pitch : pitch + 8;
    return pitch + (g.vector == 4 ? 4 : 2);
  }

  double predict(const Col2imGeometry& g) const {
    const DeviceRates rates = rates_of(caps_);
    const int products = components_ * (components_ + 1) / 2;
    const double stages = g.depth_chunks, chunks = g.chunks;
    const auto kernel_rows = static_cast<double>(p_.R), stride_h = static_cast<double>(p_.stride.h);
    // A step has so many cycles of MMAs, instructions of a thread, bytes of shared memory.
    const double mmas = products * chunks * stages * (kDepthFilters / 16);
    const double mma = mmas * g.columns / 2;
    const double unit_rounds = static_cast<double>(ceil_div(g.units, 128));
    const double finished = g.merges_rows() ? 0 : stride_h;
    const double tap_instructions =
        unit_rounds * (kernel_rows * (8 + g.taps * (1 + g.vector) + g.vector) +
                       stride_h * (8 + 4 * g.vector) + finished * 8 + 8 * chunks);
    const double store_instructions = chunks * g.chunk_columns / 4.0 * 1.3;
    const double load_instructions = stages * 16 *
                                     (size_of(p_.dtype) == 2 ? 5
                                      : components_ == 1     ? 16
                                                             : 14 + 10 * components_);
    const double conflicts = g.pairs_quads() ? 1 : 1.5;
    const double unit_bytes = g.units * g.vector * 4.0;
    const double shared_bytes =
        conflicts * chunks * kStripPixels * g.chunk_columns * 4.0 +
        unit_bytes * kernel_rows * g.taps +
        2 * unit_bytes * (g.merges_rows() ? kernel_rows - 1 : kernel_rows + stride_h) +
        mmas * (kStripPixels + g.columns) * 32 + stages * components_ * kStageBytes;
    const double own_instructions = tap_instructions + store_instructions;
    const double consumer = mma + kStepCycles + kInstructionCycles * own_instructions;
    const double loader = kLoadCycles * stages + kInstructionCycles * load_instructions;
    const double shared = shared_bytes / kSharedBytesPerCycle;
    const double issued = own_instructions + load_instructions;  // by each of four schedulers
    // What runs side by side gets in each other's way.
    const double longest = std::max({consumer / kWorkers, loader / kWorkers, mma, shared, issued});
    const double step = longest + kOverlapShare * (mma + shared + issued - longest);
    const double steps = static_cast<double>(p_.N) * g.strips * g.steps;
    const double segments = 1 + std::floor(steps / g.tile_blocks / kWorkers / g.steps);
    const double worker_steps =
        std::ceil(steps / (g.tile_blocks * kWorkers)) + segments * g.halo_steps;
    const double waves = std::ceil(static_cast<double>(g.blocks) / caps_.sm_count);
    const double factor = size_of(p_.dtype) == 4 ? kFloatStepFactor : kHalfStepFactor;
    const double busy =
        factor * waves * worker_steps * kWorkers * step / (kCyclesPerUs * rates.clock);

    const double size = static_cast<double>(size_of(p_.dtype));
    const double source = static_cast<double>(p_.N * p_.K * p_.P * p_.Q) * size;
    const double target = static_cast<double>(p_.N * p_.C * p_.H * p_.W) * size;
    const double read = source * g.strips * kStripPixels / std::max<double>(p_.Q, 1);
    const double near = find_near_share(source + target);
    const double memory =
        (source + 1.5 * target) * (1 - near) / (kBytesPerUs * rates.memory) +
        (read * g.channel_tiles - source * (1 - near)) / (kNearBytesPerUs * rates.memory);
    const double together = std::max(busy, memory) + 0.15 * std::min(busy, memory);
    return kBlockUs + together * (g.channel_tiles > 1 ? kTilesMargin : 1);
  }

  static constexpr int64_t kMostHaloPoints = 48, kMostRingRows = 256, kMostStride = 64;
  static constexpr int64_t kMaxBlocks = int64_t{1} << 24;
  static constexpr int64_t kMostOffset = (int64_t{1} << 31) - 1;

  const ConvProblem& p_;
  const DeviceCaps& caps_;
  const TensorMath math_;
  const int components_;
  Col2imGeometry g_{};
};

// All taps of an axis, as the kernels that measure filters see them.
GatherAxis make_axis(int64_t extent, int64_t taps) {
  GatherAxis axis;
  axis.count = extent;
  axis.taps = taps;
  return axis;
}

// MMAs have no columns but those of taps, and every tap of a pixel is added. Strided layers have no
// bound, so that their plan ends the longer search of cuda_phases.
double bound_us(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass != Pass::kInputGrad || p.stride != Hw{1, 1}) return 0;
  // Scaled fp16 needs the fewest products of float32.
  const bool splits_values = p.dtype == DType::kFloat32 && p.precision != Precision::kTf32;
  const double products = splits_values ? 3 : 1;
  const int64_t halo = (p.S - 1) * p.dilation.w;
  if (halo >= kStripPixels) return 0;
  const auto steps = static_cast<double>(p.N * p.H * ceil_div(p.W, kStripPixels - halo));
  const int64_t depth = round_up(p.filters_per_group(), kDepthFilters) / 16;
  const double columns = static_cast<double>(p.C * p.taps());
  const double multiply = steps * products * static_cast<double>(depth) * columns / 2;
  // The instructions of threads that have four channels each (Fitter::predict).
  const double values = static_cast<double>(p.N * p.C * p.H * p.W);
  const double add = values / 4 / 128 * static_cast<double>(p.R * (12 + 5 * p.S));
  const double cycles = std::max(multiply, add);
  const double factor = size_of(p.dtype) == 4 ? kFloatStepFactor : kHalfStepFactor;
  const double rate = kCyclesPerUs * rates_of(caps).clock * std::max(caps.sm_count, 1);
  return kBoundFactor * (kBlockUs + factor * cycles / rate);
}

// All but whether the filters fit.
std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass != Pass::kInputGrad) return "it computes input gradients only";
  if (std::string refusal = refuse_tensor_cores(p, caps); !refusal.empty()) return refusal;
  if (p.N == 0) return "the batch is empty";
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  return refuse_many_pixels(p);
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  Plan plan;
  plan.engine = EngineId::kCudaCol2im;
  const int64_t taps = count_fewest_taps(problem);
  const auto fit_shape = [&](const DeviceCaps& some, TensorMath math, double) {
    return fit_col2im(problem, some, math);
  };
  const auto take = [&](Col2imShape shape, int64_t before) {
    const Col2imGeometry& g = shape.geometry;
    plan.tile = {kStripPixels, int64_t{g.chunk_columns} * g.chunks, g.filters};
    plan.workspace_bytes = std::max(plan.workspace_bytes, before + shape.packed_bytes);
    return make_col2im_fit(problem, std::move(shape));
  };
  std::optional<HalvedPlan<Col2imFit>> fits =
      plan_halves<Col2imFit>(plan, problem, caps, taps, fit_shape, take);
  if (!fits) {
    return Refusal{
        "the filters of a channel do not fit in shared memory, or the kernel reaches too far"};
  }
  Col2imPlan made{problem, std::move(*fits)};
  if (made.fits.half) {  // min_terms is compared with the terms of all taps
    int& terms = made.fits.half->params.min_terms;
    terms = static_cast<int>(terms * problem.R * problem.S / taps);
  }
  plan.geometry = make_geometry(std::move(made));
  return plan;
}

}  // namespace

std::optional<Col2imShape> fit_col2im(const ConvProblem& problem, const DeviceCaps& caps,
                                      TensorMath math) {
  if (math == TensorMath::kTf32) math = TensorMath::kIeee;
  return Fitter(problem, caps, math).fit();
}

int64_t count_fewest_taps(const ConvProblem& p) {
  const auto count = [](int64_t kernel, int64_t stride, int64_t dilation) {
    return std::max<int64_t>(kernel * std::gcd(stride, dilation) / stride, 1);
  };
  return count(p.R, p.stride.h, p.dilation.h) * count(p.S, p.stride.w, p.dilation.w);
}

Col2imFit make_col2im_fit(const ConvProblem& problem, Col2imShape shape) {
  Col2imFit fit;
  static_cast<TensorParams&>(fit.params) =
      make_tensor_params(problem, make_axis(problem.H, problem.R), make_axis(problem.W, problem.S));
  fit.params.g = shape.geometry;
  fit.shape = std::move(shape);
  return fit;
}

Col2imParams make_col2im_params(const ConvProblem& problem, const Col2imFit& fit, Buffers buffers,
                                int64_t offset) {
  Col2imParams p = fit.params;
  buffers.workspace = static_cast<char*>(buffers.workspace) + offset;
  set_tensors(p, problem, make_axis(problem.H, problem.R), make_axis(problem.W, problem.S), buffers,
              0, false);
  const Strides &y = problem.y_strides, &x = problem.x_strides;
  const auto are_multiples = [](int64_t of, auto... values) { return ((values % of == 0) && ...); };
  const bool channels_adjacent = y.c == 1 && y.w != 1;
  if (channels_adjacent) {
    p.g.source_has_vectors = is_unit_aligned(p.source) && problem.filters_per_group() % 8 == 0 &&
                             are_multiples(8, y.n, y.h, y.w);
  } else {
    p.g.source_has_vectors = y.w == 1 && is_aligned(p.source, problem.dtype, 2) &&
                             are_multiples(2, y.n, y.c, y.h, problem.Q);
  }
  p.g.target_has_vectors = x.c == 1 && is_aligned(p.target, problem.dtype, 4) &&
                           are_multiples(4, x.n, x.h, x.w, problem.channels_per_group());
  return p;
}

void Col2imShape::describe(Text& out) const {
  out << "tile " << kStripPixels << " columns of dY x " << geometry.tile_channels
      << " channels, MMAs of " << geometry.columns << " columns in "
      << count_text(geometry.chunks, "chunk");
  describe_stages(out, geometry.stages);
  out << ", " << name_of(math);
}

Engine cuda_col2im_engine() {
  return {.id = EngineId::kCudaCol2im,
          .name = "cuda_col2im",
          .consider = consider,
          .bound_us = bound_us,
          .typical_ratio = 5};
}

}  // namespace convx
