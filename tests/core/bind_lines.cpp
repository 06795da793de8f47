// cuda_lines' part of the test-only module.
#include "bind_lines.h"

#include "buffers_at.h"
#include "emulate_lines.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/lines/window_fit.h"
#include "fit_wished_window.h"
#include "plan_of.h"

namespace py = pybind11;
using namespace convx;

namespace {

WindowWish read_wish(const py::dict &given) {
  WindowWish wish;
  if (given.contains("cut"))
    wish.cut = given["cut"].cast<std::string>();
  const auto read = [&](const char *name, auto &number) {
    if (given.contains(name))
      number = given[name].cast<std::decay_t<decltype(number)>>();
  };
  read("columns", wish.columns);
  read("filter_groups", wish.filter_groups);
  read("lane_bytes", wish.lane_bytes);
  read("splits", wish.splits);
  read("seed", wish.seed);
  read("half", wish.half);
  read("bands", wish.bands);
  return wish;
}

// Without a geometry where nothing fits.
Plan make_plan(const ConvProblem &problem, DeviceCaps caps,
               const WindowWish &wish) {
  Plan plan;
  plan.engine = EngineId::kCudaLines;
  LinesPlan lines{problem, {}};
  const bool forward = problem.pass == Pass::kForward;
  const int64_t scale_bytes =
      wish.half ? HalfScales::bytes(forward ? problem.K : problem.C) : 0;
  caps.workspace_limit -= scale_bytes;
  const TensorMath math = tensor_math(problem);
  const TensorMath half =
      math == TensorMath::kTf32 ? TensorMath::kHalfTf32 : TensorMath::kHalfIeee;
  std::vector<GatherPhase> phases;
  for (const GatherPhase &phase : make_gather_phases(problem)) {
    for (const GatherPhase &band : cut_bands(phase, wish.bands))
      phases.push_back(band);
  }
  for (const GatherPhase &phase : phases) {
    const auto fit = [&](TensorMath of, auto &to) {
      WindowShape shape = fit_wished_window(problem, caps, of, phase, wish);
      if (shape.columns == 0)
        return false;
      plan.workspace_bytes = std::max(
          plan.workspace_bytes, scale_bytes + shape.packed_bytes +
                                    shape.line_bytes + shape.partial_bytes);
      to = make_window_fit(problem, std::move(shape));
      return true;
    };
    if (phase.taps() == 0)
      return plan;
    HalvedPlan<WindowFit> &planned = lines.phases.emplace_back();
    planned.scale_bytes = scale_bytes;
    if (!fit(math, planned.exact) || (wish.half && !fit(half, planned.half)))
      return plan;
  }
  plan.geometry = make_geometry(std::move(lines));
  return plan;
}

py::dict describe(const WindowShape &s, const WindowParams &p,
                  int64_t workspace_bytes) {
  using namespace py::literals;
  return py::dict(
      "cut"_a = name_cut(s), "columns"_a = s.columns,
      "filter_groups"_a = s.filter_groups, "lane_bytes"_a = s.lane_bytes,
      "splits"_a = s.splits, "images"_a = s.images, "chunks"_a = s.chunks,
      "lines"_a = s.lines, "segments"_a = s.segments.size(),
      "stage_taps"_a = s.stage_taps, "source_stages"_a = s.source_stages,
      "filter_stages"_a = s.filter_stages, "resident"_a = s.resident,
      "tiles"_a = p.tiles, "blocks"_a = s.blocks, "lead"_a = p.lead,
      "aligned_rows"_a = p.aligned_rows != 0,
      "ring_positions"_a = s.ring_positions,
      "even_runs"_a = p.even_runs != 0, "cut_sectors"_a = p.cut_sectors != 0,
      "carries"_a = p.carries != 0,
      "wide_target"_a = p.wide_target != 0,
      "boxed_target"_a = p.boxed_target != 0,
      "wide_channels"_a = p.wide_channels != 0,
      "workspace_bytes"_a = workspace_bytes);
}

} // namespace

void bind_lines(py::module_ &m) {
  // Runs a problem by the kernels' own source, over tensors given by their
  // addresses (0 for none). wish: what the shape should have, see WindowWish;
  // None: the engine's own choice. Returns what it was fitted to, or None where
  // nothing fits.
  m.def("run_lines",
        [](const ConvProblem &problem, const DeviceCaps &caps, uintptr_t x,
           uintptr_t w, uintptr_t y, uintptr_t bias, const py::object &wish,
           bool descending) -> py::object {
          Plan plan;
          if (wish.is_none()) {
            const Engine engine = cuda_lines_engine();
            if (!refusal_of(engine, problem, caps).empty())
              return py::none();
            plan = plan_of(engine, problem, caps);
          } else {
            plan = make_plan(problem, caps, read_wish(wish));
            if (plan.geometry == nullptr)
              return py::none();
          }
          const Buffers buffers = buffers_at(x, w, y, bias);
          HalfScales found{};
          if (const char *fault =
                  emulate_lines(problem, plan, buffers, descending, found)) {
            throw std::runtime_error(fault);
          }
          const auto &lines = geometry_of<LinesPlan>(plan);
          // Of the first phase.
          const auto &phase = lines.phases.front();
          const WindowFit &fit = phase.half ? *phase.half : phase.exact;
          py::dict said = describe(
              fit.shape, make_window_params(lines.problem, fit, buffers, 0),
              plan.workspace_bytes);
          said["phases"] = lines.phases.size();
          said["flat"] = lines.problem.N != problem.N;
          if (phase.half) {
            said["unfit"] = found.unfit != 0;
            said["careful"] = found.careful != 0;
          }
          return said;
        });
}
