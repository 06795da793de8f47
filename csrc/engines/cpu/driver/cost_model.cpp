#include <algorithm>

#include "engines/cpu/driver/drivers.h"

namespace convx {
namespace {

// Clock cycles, measured on a Sapphire Rapids core with AVX-512. Narrower vectors change the counts
// that they are multiplied with, not the cycles. Only their ratios affect the choice.
constexpr double kCyclesPerUs = 2600;
constexpr double kFma = 0.5;            // per vector
constexpr double kFmaLatency = 4;       // minimum per step of a register tile
constexpr double kAlignedLoad = 0.6;    // per vector
constexpr double kUnalignedLoad = 2.2;  // per vector that straddles cache lines
constexpr double kSourceLine = 1.5;     // per cache line of a plane that a run of pixels reads
constexpr double kTileOverhead = 40;    // per call of a tile kernel, plus
constexpr double kTileVector = 3;       //   per vector of accumulators added to memory
constexpr double kAddLanes = 10;        // per vector whose lanes are summed
constexpr double kCopyVector = 3;       // per vector staged, packed or stored
constexpr double kPackVector = 7;       // per vector or segment of a panel
constexpr double kCopyScalar = 1.5;     // per element, in weights and other short strides
constexpr double kCopyStrided = 3.5;    // per element of an image with a long stride
constexpr double kCopyRun = 12;         // per row or segment of a copy
constexpr double kTranspose = 0.8;      // per element
constexpr double kTransposeRun = 0.3;   // per element, of finished runs
constexpr double kTask = 1500;          // per task
constexpr double kThreadsUs = 5;        // to start and join the threads

struct Machine {
  double lanes;
  double copy_element;  // cycles per element copied in runs
};

Machine describe_machine(const ConvProblem& p, const DeviceCaps& caps, int64_t element_stride) {
  const double lanes = static_cast<double>(caps.simd_bytes) / accumulate_bytes(p.dtype);
  return {lanes, element_stride == 1   ? kCopyVector / lanes
                 : element_stride == 2 ? kCopyScalar
                                       : kCopyStrided};
}

double to_us(double cycles, double tasks, const DeviceCaps& caps) {
  const double threads = std::clamp<double>(tasks, 1, std::max(caps.threads, 1));
  return cycles / threads / kCyclesPerUs + (threads > 1 ? kThreadsUs : 0);
}

double count_rows_staged(const AxisLayouts& rows) {
  double most = 0;
  for (const auto& blocks : rows) {
    for (const AxisLayout& block : blocks) most = std::max<double>(most, block.length);
  }
  return most;
}

double predict_gather(const ConvProblem& p, const Plan& plan, const DeviceCaps& caps) {
  const bool packed = plan.engine == EngineId::kCpuGemm;
  const GatherGeometry& g = cpu_geometry_of<GatherGeometry>(plan);
  const GatherView& view = g.view;
  const Machine source = describe_machine(p, caps, view.source_strides.w);
  const Machine target =
      describe_machine(p, caps, view.target_strides.w * view.columns.front().target_step);
  const double lanes = source.lanes;
  const double phases = static_cast<double>(view.rows.size() * view.columns.size());
  const double depth = static_cast<double>(view.source_channels) * p.taps() / phases;
  const double points = static_cast<double>(plan.tile.n * plan.tile.k);
  const double pixels = static_cast<double>(p.N * p.groups) * view.target_h * view.target_w;
  const double chunks = pixels / points;
  const double tasks = chunks * g.channel_blocks;

  const bool wide_registers = caps.simd_bytes == 64;
  const double most_rows_of_four = wide_registers ? 6 : 3;
  const double m = static_cast<double>(plan.tile.m);
  const double vectors = m <= most_rows_of_four ? 4 : 2;
  const double panels = ceil_div(plan.tile.m, vectors == 4 ? static_cast<int64_t>(most_rows_of_four)
                                                           : (wide_registers ? 14 : 6));
  double in_vectors = std::max(points / lanes, 1.0);
  double halo_columns = plan.tile.k;
  for (const auto& blocks : g.column_layouts) {
    for (const AxisLayout& block : blocks) {
      halo_columns = std::max<double>(halo_columns, block.longest);
    }
  }
  if (!packed) {
    const double by_row =
        plan.tile.n * std::max(1.0, double(ceil_div(plan.tile.k, int64_t(lanes))));
    in_vectors = std::min(by_row, std::max(1.0, plan.tile.n * halo_columns / lanes));
  }
  const double tiles = std::max(1.0, in_vectors / vectors);

  const double load = packed ? kAlignedLoad : kUnalignedLoad;
  const double step = std::max({m * vectors * kFma, panels * kFmaLatency, panels * vectors * load});
  double cycles = tasks * tiles *
                  (depth * step +
                   g.depth_blocks * panels * (kTileOverhead + kTileVector * vectors * m / panels));
  const int64_t widest = wide_registers ? 4 : 2;
  if (vectors_run_over_channels(p, g, static_cast<int64_t>(lanes), widest)) {
    const double pixels_per_run = wide_registers ? 7 : 6;
    const double runs = points / pixels_per_run * m / (lanes * widest);
    const double run_vectors = pixels_per_run * widest;
    const double lines = depth / static_cast<double>(g.box.columns);
    cycles = tasks * (runs * (depth * run_vectors * kFma + lines * kSourceLine +
                              g.depth_blocks * (kTileOverhead + kTileVector * run_vectors)) +
                      points * m * kTransposeRun);
  }
  if (packed) {
    const double segments = 1 + vectors * lanes / plan.tile.k;
    cycles += tasks * tiles * depth * kPackVector * (vectors + segments);
  }
  const double staged_rows = count_rows_staged(g.row_layouts) * view.source_channels;
  cycles += tasks * staged_rows * (kCopyRun + halo_columns * source.copy_element);
  cycles += tasks * m * (points * target.copy_element + plan.tile.n * kCopyRun);
  cycles += tasks * kTask;
  cycles += static_cast<double>(p.K) * p.channels_per_group() * p.taps() * kCopyScalar;
  return to_us(cycles, tasks, caps);
}

double predict_weight(const ConvProblem& p, const Plan& plan, const DeviceCaps& caps) {
  const bool packed = plan.engine == EngineId::kCpuGemm;
  const WeightGeometry& g = cpu_geometry_of<WeightGeometry>(plan);
  const Machine x = describe_machine(p, caps, p.x_strides.w);
  const Machine y = describe_machine(p, caps, p.y_strides.w);
  const double lanes = x.lanes;
  const double m = static_cast<double>(plan.tile.m);
  const double depth = static_cast<double>(p.channels_per_group()) * p.taps() / g.depth_blocks;
  const double points = static_cast<double>(plan.tile.n * plan.tile.k);
  const double blocks = static_cast<double>(p.groups * g.filter_blocks * g.depth_blocks);
  const double chunks = blocks * g.chunks;
  const bool wide_registers = caps.simd_bytes == 64;

  double cycles = 0;
  if (packed) {
    const double vectors = double(ceil_div(plan.tile.m, static_cast<int64_t>(lanes)));
    const double rows = vectors >= 3 && wide_registers ? 6 : vectors >= 2 ? 6 : 8;
    const double tiles = std::max(depth / rows, 1.0);
    const double step = std::max(vectors * std::min(rows, depth) * kFma, kFmaLatency);
    cycles += chunks * tiles * (points * step + kTileOverhead + rows * vectors * kTileVector);
    cycles += chunks * points * vectors * lanes * kTranspose;
  } else {
    const double rows = m >= 4 ? 4 : m >= 2 ? 2 : 1;
    const double columns = std::min(depth, wide_registers ? 24 / rows : 10 / rows);
    const double tiles = m / rows * depth / columns;
    const double steps = plan.tile.n * double(ceil_div(plan.tile.k, static_cast<int64_t>(lanes)));
    const double step = std::max(
        {rows * columns * kFma, kFmaLatency, rows * kAlignedLoad + columns * kUnalignedLoad});
    cycles += chunks * tiles * (steps * step + kTileOverhead + rows * columns * kAddLanes);
  }
  const double staged_rows = count_rows_staged(g.row_layouts) * g.box.channels;
  const double widening = static_cast<double>(p.W) / p.Q;
  cycles +=
      chunks * staged_rows * (kCopyRun + plan.tile.k * std::max(1.0, widening) * x.copy_element);
  cycles += chunks * m * (plan.tile.n * kCopyRun + points * y.copy_element);
  cycles += blocks * g.split * (kTask + 2 * kCopyScalar * m * depth);
  return to_us(cycles, blocks * g.split, caps);
}

}  // namespace

double predict_cpu_us(const ConvProblem& problem, const Plan& plan, const DeviceCaps& caps) {
  if (problem.N == 0) return 0;
  return problem.pass == Pass::kWeightGrad ? predict_weight(problem, plan, caps)
                                           : predict_gather(problem, plan, caps);
}

}  // namespace convx
