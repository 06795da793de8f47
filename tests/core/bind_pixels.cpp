// The pixel engine's part of the test-only module.
#include "bind_pixels.h"

#include "buffers_at.h"
#include "emulate_pixel_kernels.h"
#include "emulate_pixels.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/pixels/pixel_fit.h"
#include "engines/cuda/pixels/pixel_tiles.h"
#include "plan_of.h"

namespace py = pybind11;
using namespace convx;

namespace {

// 32-bit numbers in memory order: much faster to hand over than a list.
py::bytes to_bytes(const std::vector<int>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int)};
}

// Returns whether values were not fit for halves.
bool run_plan(const ConvProblem& problem, const Plan& plan, const Buffers& buffers,
              bool descending) {
  bool unfit = false;
  if (const char* fault = emulate_pixels(problem, plan, buffers, descending, unfit)) {
    throw std::runtime_error(fault);
  }
  return unfit;
}

}  // namespace

void bind_pixels(py::module_& m) {
  py::class_<PixelFit>(m, "PixelFit");
  // The geometry that the pixel engine fits to a forward problem, or None; and
  // its numbers. half: that of float32 multiplied as halves.
  m.def(
      "fit_pixels",
      [](const ConvProblem& problem, const DeviceCaps& caps, bool half) -> py::object {
        const GatherPhase phase = make_gather_phases(problem)[0];
        const TensorMath math = tensor_math(problem);
        PixelShape shape = fit_pixel_shape(
            problem, caps, phase.rows, phase.columns,
            make_wgmma_tiling(!half                     ? math
                              : math == TensorMath::kTf32 ? TensorMath::kHalfTf32
                                                          : TensorMath::kHalfIeee));
        if (shape.filters == 0) return py::none();
        return py::cast(make_pixel_fit(problem, std::move(shape)));
      },
      py::arg("problem"), py::arg("caps"), py::arg("half") = false);
  m.def("describe_pixels", [](const PixelFit& fit) {
    const PixelShape& s = fit.shape;
    const PixelParams& p = fit.params;
    using namespace py::literals;
    return py::dict(
        "filters"_a = s.filters, "window"_a = s.window_pixels(), "window_step"_a = s.window_step,
        "per_image"_a = s.per_image != 0, "pixel_tiles"_a = s.pixel_tiles, "tiles"_a = p.tiles,
        "filter_tiles"_a = s.filter_tiles, "splits"_a = s.splits, "bands"_a = s.bands != 0,
        "channels_last"_a = s.channels_last != 0, "vector"_a = p.vector, "run"_a = p.run,
        "row_pitch"_a = s.row_pitch, "positions"_a = s.positions(), "entries"_a = p.entries,
        "position_pitch"_a = s.position_pitch, "channel_pitch"_a = s.channel_pitch,
        "entry_elements"_a = p.entry_elements, "entry_copies"_a = p.entry_copies,
        "copy_channels"_a = p.copy_channels, "copy_shared"_a = p.copy_shared,
        "copy_source"_a = p.copy_source, "folded"_a = s.folded != 0, "paired"_a = s.paired != 0,
        "row_pairs"_a = s.row_pairs, "pair_lead"_a = p.pair_lead, "table_depth"_a = s.table_depth(),
        "chunk_channels"_a = s.chunk_channels, "chunks"_a = s.chunks, "steps"_a = s.steps,
        "step_depth"_a = step_depth(s.math), "gathered_depth"_a = gathered_depth(s.math),
        "stage_steps"_a = s.stage_steps, "source_stages"_a = s.source_stages,
        "filter_stages"_a = s.filter_stages, "resident"_a = s.resident != 0,
        "barrier_bytes"_a = kPixelBarrierBytes, "store_filters"_a = kStoreFilters,
        "staging_pitch"_a = staging_elements(s.window_pixels(), 4), "step_bytes"_a = p.step_bytes,
        "filter_stage_bytes"_a = p.filter_stage_bytes,
        "source_stage_bytes"_a = s.source_stage_bytes, "staging_offset"_a = s.staging_offset,
        "source_offset"_a = s.source_offset, "filter_offset"_a = s.filter_offset,
        "shared_bytes"_a = s.shared_bytes, "packed_bytes"_a = s.packed_bytes,
        "partial_bytes"_a = s.partial_bytes);
  });
  // Runs a fit by the kernels' own source, over tensors given
  // by their addresses (0 for none); descending: last threads go first. half:
  // the fit that is run before, or None. Returns whether values were not fit
  // for it.
  m.def("run_pixels", [](const ConvProblem& problem, const PixelFit& fit, uintptr_t x, uintptr_t w,
                         uintptr_t y, uintptr_t bias, bool descending, const py::object& half) {
    HalvedPlan<PixelFit> pixels;
    Plan plan;
    plan.engine = EngineId::kCudaPixels;
    const auto take = [&](const PixelFit& taken) {
      plan.workspace_bytes =
          std::max(plan.workspace_bytes, taken.shape.packed_bytes + taken.shape.partial_bytes);
      return taken;
    };
    pixels.exact = take(fit);
    if (!half.is_none()) {
      pixels.half = take(half.cast<const PixelFit&>());
      pixels.scale_bytes = HalfScales::bytes(problem.K);
      plan.workspace_bytes += pixels.scale_bytes;
    }
    plan.geometry = make_geometry(PixelsPlan{{std::move(pixels)}});
    return run_plan(problem, plan, buffers_at(x, w, y, bias), descending);
  });
  // The same as the engine itself would run it, in all its phases. Returns the
  // refusal, or what they were fitted to.
  m.def("run_pixels_engine", [](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x,
                                uintptr_t w, uintptr_t y, uintptr_t bias) -> py::object {
    const Engine engine = cuda_pixels_engine();
    if (std::string refusal = refusal_of(engine, problem, caps); !refusal.empty()) {
      return py::str(refusal);
    }
    const Plan plan = plan_of(engine, problem, caps);
    run_plan(problem, plan, buffers_at(x, w, y, bias), false);
    py::list said;
    using namespace py::literals;
    for (const auto& phase : geometry_of<PixelsPlan>(plan).phases) {
      const PixelShape& s = phase.half ? phase.half->shape : phase.exact.shape;
      said.append(py::dict("half"_a = phase.half.has_value(), "filters"_a = s.filters,
                           "folded"_a = s.folded != 0, "splits"_a = s.splits, "bands"_a = s.bands != 0,
                           "channels_last"_a = s.channels_last != 0, "steps"_a = s.steps));
    }
    return said;
  });
  // (tiles, bases, sources, distances) of PixelPlaces.
  m.def("place_pixels", [](const PixelFit& fit) {
    const PixelPlaces places = emulate_pixel_places(fit);
    return py::make_tuple(to_bytes(places.tiles), to_bytes(places.bases), to_bytes(places.sources),
                          to_bytes(places.distances));
  });
}
