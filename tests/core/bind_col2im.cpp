// cuda_col2im's part of the test-only module.
#include "bind_col2im.h"

#include <algorithm>
#include <memory>

#include "buffers_at.h"
#include "emulate_col2im.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/input_grad/col2im_geometry.h"
#include "plan_of.h"

namespace py = pybind11;
using namespace convx;

namespace {

// Puts scaled fp16 in front of the exact kernels, whatever the prediction says.
void force_half(const ConvProblem& problem, const DeviceCaps& caps, Plan& plan) {
  auto made = geometry_of<Col2imPlan>(plan);
  const int64_t taps = count_fewest_taps(problem);
  const std::optional<Halves> halves = find_halves(problem, taps);
  if (made.fits.half || !halves) return;
  const std::optional<Col2imShape> shape = fit_col2im(problem, caps, halves->math);
  if (!shape) return;
  made.fits.half = make_col2im_fit(problem, *shape);
  made.fits.half->params.min_terms =
      static_cast<int>(halves->min_terms * problem.R * problem.S / taps);
  made.fits.scale_bytes = halves->scale_bytes;
  plan.halves = true;
  plan.workspace_bytes = halves->scale_bytes + std::max(shape->packed_bytes, plan.workspace_bytes);
  plan.geometry = make_geometry(std::move(made));
}

}  // namespace

void bind_col2im(py::module_& m) {
  // Runs a problem by the kernels' own source, over tensors given by their
  // addresses. Returns the refusal, or the geometry of the kernel that runs
  // first.
  m.def(
      "run_col2im",
      [](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x, uintptr_t w, uintptr_t y,
         uintptr_t bias, bool half) -> py::object {
        const Engine engine = cuda_col2im_engine();
        if (std::string refusal = refusal_of(engine, problem, caps); !refusal.empty()) {
          return py::str(refusal);
        }
        Plan plan = plan_of(engine, problem, caps);
        if (half) force_half(problem, caps, plan);
        const auto& fits = geometry_of<Col2imPlan>(plan).fits;
        HalfScales scales{};
        if (const char* fault = emulate_col2im(problem, plan, buffers_at(x, w, y, bias), scales)) {
          throw std::runtime_error(fault);
        }
        using namespace py::literals;
        const Col2imGeometry& g = (fits.half ? *fits.half : fits.exact).shape.geometry;
        return py::dict(
            "columns"_a = g.columns, "chunk_columns"_a = g.chunk_columns, "chunks"_a = g.chunks,
            "tile_channels"_a = g.tile_channels, "vector"_a = g.vector, "stages"_a = g.stages,
            "strips"_a = g.strips, "strip_points"_a = g.strip_points, "blocks"_a = g.blocks,
            "shared_bytes"_a = g.shared_bytes, "is_half"_a = fits.half.has_value(),
            "unfit"_a = fits.half ? scales.unfit : 0, "microseconds"_a = plan.predicted_us);
      },
      py::arg("problem"), py::arg("caps"), py::arg("x"), py::arg("w"), py::arg("y"),
      py::arg("bias"), py::arg("half") = false);
}
