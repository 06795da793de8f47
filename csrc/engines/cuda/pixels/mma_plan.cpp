#include <algorithm>
#include <utility>

#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pixels/pixel_fit.h"
#include "engines/cuda/pixels/pixel_tiles.h"
#include "planning/refusals.h"

namespace convx {
namespace {

PixelShape fit_phase(const ConvProblem& problem, const DeviceCaps& caps, GatherAxis rows,
                     GatherAxis columns) {
  const bool empty = rows.taps == 0 || columns.taps == 0;
  rows.taps = std::max<int64_t>(rows.taps, 1);
  columns.taps = std::max<int64_t>(columns.taps, 1);
  PixelShape shape =
      fit_pixel_shape(problem, caps, rows, columns, make_mma_tiling(tensor_math(problem), caps));
  if (empty) {  // no tap reaches these pixels: the kernel only stores zeros
    shape.chunks = 0;
    shape.splits = 1;
    shape.packed_bytes = shape.partial_bytes = 0;
  }
  // Every block computes one tile.
  shape.grid = static_cast<int>(
      std::max<int64_t>(1, shape.pixel_tiles * shape.filter_tiles * problem.groups * shape.splits));
  return shape;
}

// All but whether a tile fits.
std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass == Pass::kWeightGrad) return "it computes no weight gradient";
  if (p.dtype == DType::kFloat64) return "tensor cores here take no float64";
  if (std::string refusal = refuse_before_sm_80(caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (std::string large = refuse_large_images(p); !large.empty()) return large;
  return refuse_many_phases(p);
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  Plan plan;
  plan.engine = EngineId::kCudaMma;
  std::vector<PixelFit> phases;
  for (const GatherPhase& phase : make_gather_phases(problem)) {
    PixelShape shape = fit_phase(problem, caps, phase.rows, phase.columns);
    if (shape.filters == 0) {
      return Refusal{"no tile fits in shared memory, or its images lie 2^31 elements apart"};
    }
    if (phases.empty()) {
      plan.tile = {2 * int64_t{shape.window_pixels()}, shape.filters, shape.chunk_channels};
    }
    plan.split = std::max<int64_t>(plan.split, shape.splits);
    plan.workspace_bytes = std::max(plan.workspace_bytes, shape.packed_bytes + shape.partial_bytes);
    plan.predicted_us += shape.microseconds;
    phases.push_back(make_pixel_fit(problem, std::move(shape)));
  }
  plan.geometry = make_geometry(MmaPlan{std::move(phases)});
  return plan;
}

// On Hopper the engines of wgmma were measured, and this one was not.
bool competes_on(const DeviceCaps& caps) { return caps.compute_major != 9 || !caps.wgmma; }

}  // namespace

void MmaPlan::describe(Text& out) const {
  write_counted(out, phases, "phase",
                [](Text& line, const PixelFit& phase) { phase.shape.describe(line); });
}

Engine cuda_mma_engine() {
  return {.id = EngineId::kCudaMma,
          .name = "cuda_mma",
          .consider = consider,
          .competes_on = competes_on};
}

}  // namespace convx
