// cuda_mma's part of the test-only module.
#include "bind_mma.h"

#include "buffers_at.h"
#include "emulate_mma.h"
#include "engines/cuda/cuda_engines.h"
#include "plan_of.h"

namespace py = pybind11;
using namespace convx;

void bind_mma(py::module_& m) {
  // Runs a problem by the kernels' own source, over tensors given by their addresses (0 for none).
  // Returns the refusal, or what each phase was fitted to.
  m.def("run_mma",
        [](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x, uintptr_t w,
           uintptr_t y, uintptr_t bias) -> py::object {
          const Engine engine = cuda_mma_engine();
          const std::string refusal = refusal_of(engine, problem, caps);
          if (!refusal.empty()) return py::str(refusal);
          const Plan plan = plan_of(engine, problem, caps);
          const MmaPlan& fit = geometry_of<MmaPlan>(plan);
          const Buffers buffers = buffers_at(x, w, y, bias);
          if (const char* fault = emulate_mma(problem, fit, buffers, plan.workspace_bytes)) {
            throw std::runtime_error(fault);
          }
          using namespace py::literals;
          py::list phases;
          for (const PixelFit& phase : fit.phases) {
            const PixelShape& s = phase.shape;
            phases.append(
                py::dict("filters"_a = s.filters, "blocks"_a = s.blocks, "folded"_a = s.folded != 0,
                         "bands"_a = s.bands != 0, "splits"_a = s.splits, "chunks"_a = s.chunks,
                         "steps"_a = s.steps, "stage_chunks"_a = s.stage_chunks,
                         "stage_steps"_a = s.stage_steps, "filter_stages"_a = s.filter_stages,
                         "source_stages"_a = s.source_stages, "blocks_per_sm"_a = s.blocks_per_sm,
                         "shared_bytes"_a = s.shared_bytes, "vector"_a = s.run,
                         "window_step"_a = s.window_step, "window"_a = s.window_pixels()));
          }
          return phases;
        });
}
