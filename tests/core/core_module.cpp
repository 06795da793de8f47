// The core as a Python module, for tests only: what the libraries decide, seen without tensors.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>

#include "bind_choice.h"
#include "bind_col2im.h"
#include "bind_lines.h"
#include "bind_mma.h"
#include "bind_pixels.h"
#include "bind_problem.h"
#include "buffers_at.h"
#include "core/choose_engine.h"
#include "core/gather_view.h"
#include "core/plan_cache.h"
#include "core/problem.h"
#include "core/scalar_types.h"
#include "emulate_bands.h"
#include "emulate_bias_grad.h"
#include "emulate_boxes.h"
#include "emulate_depthwise.h"
#include "emulate_diagonal.h"
#include "emulate_direct.h"
#include "emulate_gemm.h"
#include "emulate_grouped.h"
#include "emulate_phases.h"
#include "emulate_pointwise.h"
#include "emulate_separate_pass.h"
#include "emulate_weight_grad.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/gemm/gemm_shape.h"
#include "engines/cuda/gemm/gemm_in_place.h"
#include "engines/cuda/lines/window_fit.h"
#include "engines/cuda/input_grad/phases_shape.h"
#include "engines/cuda/weight_grad/wgrad_fit.h"
#include "engines/engines.h"
#include "plan_of.h"

namespace py = pybind11;
using namespace convx;

namespace {

std::span<const Engine> engines_of(const std::string& device) {
  return device == "cuda" ? cuda_engines() : cpu_engines();
}

// Runs a fitted grouped problem on the host and returns what was fitted.
py::object run_grouped(const ConvProblem& problem, const GroupedFit& fit, const Buffers& buffers) {
  using namespace py::literals;
  Plan plan;
  plan.engine = EngineId::kCudaGrouped;
  plan.geometry = make_geometry(fit);
  if (const char* fault = emulate_grouped(problem, plan, buffers)) throw std::runtime_error(fault);
  if (fit.pixels.blocks > 0) {
    const GroupedPixelParams& p = fit.pixels.params;
    return py::dict("pixels"_a = true, "block_quads"_a = p.block_quads,
                    "quad_blocks"_a = p.quad_blocks, "blocks"_a = fit.pixels.blocks,
                    "aligned"_a = p.aligned, "microseconds"_a = fit.microseconds);
  }
  const GroupedTask& task = fit.task();
  const auto tile = py::make_tuple(task.tile_groups, task.tile_rows, task.tile_cols);
  if (fit.mma.blocks > 0) {
    const GroupedMmaParams& p = fit.mma.params;
    return py::dict("tensor_cores"_a = true, "blocks"_a = fit.mma.blocks, "unit"_a = p.unit,
                    "filters"_a = fit.mma.kernel.filters, "cells"_a = fit.mma.kernel.cells,
                    "steps"_a = p.steps, "spans"_a = static_cast<int>(p.spans),
                    "pairs"_a = p.pairs, "tile"_a = tile, "images"_a = p.tile_images,
                    "resident"_a = fit.mma.resident, "shared_bytes"_a = fit.mma.shared_bytes,
                    "microseconds"_a = fit.mma.microseconds);
  }
  const GroupedParams& p = fit.params;
  return py::dict("tensor_cores"_a = false, "blocks"_a = fit.blocks, "threads"_a = fit.threads,
                  "unit"_a = p.stage.unit, "window"_a = static_cast<int>(fit.kernel.window),
                  "filters"_a = fit.kernel.filters, "store_width"_a = p.store_width,
                  "chunks"_a = p.chunks, "tile"_a = tile, "images"_a = p.tile_images,
                  "buffers"_a = p.buffers, "shared_bytes"_a = fit.shared_bytes);
}

}  // namespace

PYBIND11_MODULE(convx_core, m) {
  bind_problem(m);
  bind_choice(m);

  // Phases of one axis as (target_start, target_step, count, source_step, [(tap, offset), ...]).
  const auto to_python = [](const std::vector<AxisPhase>& phases) {
    py::list result;
    for (const AxisPhase& phase : phases) {
      py::list taps;
      for (const AxisTap& tap : phase.taps) taps.append(py::make_tuple(tap.tap, tap.offset));
      result.append(py::make_tuple(phase.target_start, phase.target_step, phase.count,
                                   phase.source_step, taps));
    }
    return result;
  };
  m.def("forward_phases", [to_python](int64_t output, int64_t kernel, int64_t stride, int64_t pad,
                                      int64_t dilation) {
    return to_python(forward_phases(output, kernel, stride, pad, dilation));
  });
  m.def("input_grad_phases", [to_python](int64_t input, int64_t kernel, int64_t stride, int64_t pad,
                                         int64_t dilation) {
    return to_python(input_grad_phases(input, kernel, stride, pad, dilation));
  });

  // find: (address of the plan or 0, error)
  py::class_<PlanCache>(m, "PlanCache")
      .def(py::init<>())
      .def("find", [](PlanCache& cache, const std::string& device, const ConvProblem& problem,
                      const DeviceCaps& caps, int index, const std::string& algorithm) {
        std::string error;
        const auto plan =
            cache.find_or_choose(engines_of(device), problem, caps, index, algorithm, error);
        return py::make_tuple(reinterpret_cast<uintptr_t>(plan.get()), error);
      })
      .def("find_engine", [](PlanCache& cache, const std::string& device,
                             const ConvProblem& problem, const DeviceCaps& caps, int index) {
        std::string error;
        const std::span<const Engine> engines = engines_of(device);
        const auto plan = cache.find_or_choose(engines, problem, caps, index, "auto", error);
        for (const Engine& engine : engines) {
          if (plan && engine.id == plan->engine) return std::string(engine.name);
        }
        return error;
      })
      .def("choose",
           [](PlanCache& cache, const std::string& device, const ConvProblem& problem,
              const DeviceCaps& caps, int index, const std::string& algorithm) {
             const auto engines = engines_of(device);
             return describe_choice(cache.choose(engines, problem, caps, index, algorithm),
                                    problem, caps);
           })
      .def("prefer", [](PlanCache& cache, const ConvProblem& problem, int index,
                        const std::string& algorithm) { cache.prefer(problem, index, algorithm); })
      .def("record", [](PlanCache& cache, bool on) {
        py::list calls;
        for (const PlanCache::Call& call : cache.record(on)) {
          calls.append(py::make_tuple(describe(call.problem), call.device));
        }
        return calls;
      });
  // The geometry that the window engines fit to a forward problem, or None.
  m.def("fit_window", [](const ConvProblem& problem, const DeviceCaps& caps) -> py::object {
    const GatherView view = make_gather_view(problem);
    const WindowShape s =
        fit_window_shape(problem, caps, tensor_math(problem), make_gather_axis(view.rows[0], false),
                         make_gather_axis(view.columns[0], false));
    if (s.columns == 0) return py::none();
    py::list segments;
    for (const WindowSegment& segment : s.segments) {
      segments.append(py::make_tuple(segment.shift, segment.row_phase, segment.column_phase,
                                     segment.line));
    }
    using namespace py::literals;
    return py::dict(
        "pitch"_a = s.pitch, "rows"_a = s.rows, "strips"_a = s.strips,
        "strip_columns"_a = s.strip_columns, "row_base"_a = s.row_base,
        "column_base"_a = s.column_base, "columns"_a = s.columns,
        "filter_groups"_a = s.filter_groups, "window_step"_a = s.window_step,
        "second_window"_a = s.second_window, "second_offset"_a = s.second_offset,
        "pair_rows"_a = s.pair_rows, "column_windows"_a = s.column_windows,
        "pairs_per_image"_a = s.pairs_per_image, "pixel_tiles"_a = s.pixel_tiles,
        "segments"_a = segments, "segment_length"_a = s.segment_length,
        "tap_positions"_a = s.tap_positions, "by_rows"_a = s.by_rows,
        "shared_bytes"_a = s.shared_bytes, "splits"_a = s.splits, "chunks"_a = s.chunks,
        "images"_a = s.images, "lines"_a = s.lines, "line_positions"_a = s.line_positions,
        "lane_bytes"_a = s.lane_bytes, "source_stages"_a = s.source_stages,
        "filter_stages"_a = s.filter_stages, "resident"_a = s.resident,
        "microseconds"_a = s.microseconds);
  });
  bind_pixels(m);
  bind_lines(m);
  bind_col2im(m);
  bind_mma(m);
  // Fits a depthwise problem, runs its kernel on the host over tensors given by their addresses (0
  // for none) and returns the geometry, or None where no tile fits.
  m.def("run_depthwise", [](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x,
                            uintptr_t w, uintptr_t y, uintptr_t bias) -> py::object {
    using namespace py::literals;
    Buffers buffers = buffers_at(x, w, y, bias);
    const auto run = [&](const DepthwisePlan& planned) {
      Plan plan;
      plan.engine = EngineId::kCudaDepthwise;
      plan.geometry = make_geometry(planned);
      if (const char* fault = emulate_depthwise(problem, plan, buffers)) {
        throw std::runtime_error(fault);
      }
    };
    if (problem.pass == Pass::kWeightGrad) {
      const DepthwiseWeightGradFit grad = fit_depthwise_weight_grad(problem, caps);
      const auto run_fit = [&](const auto& fit) -> py::object {
        if (fit.blocks == 0) return py::none();
        std::vector<float> partials(static_cast<size_t>(fit.workspace_bytes) / 4, NAN);
        buffers.workspace = partials.data();
        run({grad});
        py::dict said("parts"_a = fit.splits, "blocks"_a = fit.blocks);
        if constexpr (requires { fit.columns; }) {
          said["strips"] = fit.columns;
        } else {
          said["core"] = py::make_tuple(kPixelGradCores[fit.core].taps,
                                        kPixelGradCores[fit.core].stride);
          const auto params = make_pixel_weight_grad_params(problem, fit, buffers);
          said["unit"] = params.unit;
          said["boxes"] = params.uses_boxes;
          said["rows"] = make_row_weight_grad_params(problem, fit.rows, buffers).has_value();
          said["row_parts"] = fit.rows.splits;
          said["stages"] = fit.params.stages;
          said["shared_bytes"] = fit.shared_bytes;
          said["threads"] = fit.threads;
          said["microseconds"] = fit.microseconds;
        }
        return said;
      };
      return std::visit(run_fit, grad);
    }
    if (is_strided_input_grad(problem)) {
      const PhaseStripFit strips = fit_phase_strips(problem, caps);
      if (strips.blocks == 0) return py::none();
      run({strips});
      return py::dict("channels"_a = make_phase_strips(problem, strips, buffers).channels,
                      "segment_rows"_a = strips.params.segment_rows, "blocks"_a = strips.blocks);
    }
    const DepthwiseFit fit = fit_depthwise(problem, caps);
    if (fit.blocks == 0) return py::none();
    run({fit});
    const bool planes = fit.layout == DepthwiseLayout::kPlanes;
    const StagePlan& stage = planes ? fit.plane.stage : fit.pixel.stage;
    const bool in_strips = fit.strip.shape >= 0;
    const int strips = in_strips ? make_strip_launch(problem, fit, buffers).columns : 0;
    const bool pixel_strips = make_pixel_strip_params(problem, fit, buffers).has_value();
    return py::dict("planes"_a = planes, "strips"_a = strips,
                    "pixel_strips"_a = pixel_strips, "blocks"_a = fit.blocks, "unit"_a = stage.unit,
                    "shared_bytes"_a = fit.shared_bytes, "tile_planes"_a = fit.plane.tile_planes,
                    "rows_apart"_a = fit.plane.rows_apart, "wide"_a = fit.plane_taps == 8);
  });
  // Runs a problem by cuda_gemm's own source. Returns the refusal, or how layers are multiplied that
  // need no columns.
  m.def("run_gemm", [](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x, uintptr_t w,
                       uintptr_t y, uintptr_t bias) -> py::object {
    const Engine engine = cuda_gemm_engine();
    if (std::string refusal = refusal_of(engine, problem, caps); !refusal.empty()) {
      return py::str(refusal);
    }
    const Plan plan = plan_of(engine, problem, caps);
    if (const char* fault = emulate_gemm(problem, plan, buffers_at(x, w, y, bias))) {
      throw std::runtime_error(fault);
    }
    using namespace py::literals;
    const auto& shape = geometry_of<GemmShape>(plan);
    return py::dict("form"_a = name_of(shape.in_place.form),
                    "packs_filters"_a = shape.in_place.filters.packed,
                    "is_whole"_a = shape.in_place.is_whole,
                    "bias_pixels"_a = shape.in_place.bias_pixels,
                    "chunk_pixels"_a = shape.in_place.chunk_pixels,
                    "few_tiles"_a = shape.in_place.lt_rank == kFewTiles,
                    "workspace_bytes"_a = plan.workspace_bytes);
  });
  m.def("choose_few_tiles", &choose_few_tiles);
  // The same with the kernels of boxes; of the first launch. filters, resident, pieces, in_turn,
  // parts and flat: see BoxesWish.
  m.def("run_boxes",
        [](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x, uintptr_t w,
           uintptr_t y, uintptr_t bias, int filters, int resident, bool descending,
           int pieces, int in_turn, int parts, int flat) -> py::object {
          const Engine engine = cuda_boxes_engine();
          if (std::string refusal = refusal_of(engine, problem, caps); !refusal.empty()) {
            return py::str(refusal);
          }
          Plan plan = plan_of(engine, problem, caps);
          auto boxes = geometry_of<BoxesPlan>(plan);
          const int64_t planned_bytes = round_up(plan.workspace_bytes, 256);
          for (BoxesFit& fit : boxes.launches) {
            const BoxesWish wish{filters, resident, pieces, in_turn, parts, flat};
            BoxesShape wished = fit_boxes_shape(boxes.problem, caps, fit.shape.phases, wish);
            if (wished.filters == 0) return py::none();
            if (wished.parts > 1) {  // behind what was planned, where a padded source may be
              wished.sums_offset += planned_bytes;
              plan.workspace_bytes = planned_bytes + wished.workspace_bytes;
            }
            fit = make_boxes_fit(boxes.problem, std::move(wished));
          }
          const BoxesShape shape = boxes.launches[0].shape;
          const size_t launches = boxes.launches.size();
          plan.geometry = make_geometry(std::move(boxes));
          if (const char* fault =
                  emulate_boxes(problem, plan, buffers_at(x, w, y, bias), descending)) {
            throw std::runtime_error(fault);
          }
          using namespace py::literals;
          const PixelBox& box = shape.box;
          return py::dict("filters"_a = shape.filters, "stages"_a = shape.stages,
                          "box"_a = py::make_tuple(box.columns, box.rows, box.images),
                          "flat"_a = shape.flat_pitch > 0, "tiles"_a = shape.tiles(),
                          "chunks"_a = shape.chunks,
                          "filters_in_place"_a = shape.filter_order == BoxFilters::kInPlace,
                          "filter_columns"_a = shape.filter_order == BoxFilters::kColumns,
                          "phases"_a = shape.phases.size(), "launches"_a = launches,
                          "resident"_a = shape.resident, "grid"_a = shape.grid,
                          "pieces"_a = shape.pieces, "in_turn"_a = shape.in_turn,
                          "staggered"_a = shape.is_staggered(),
                          "parts"_a = shape.parts, "whole_tiles"_a = shape.whole_tiles,
                          "workspace_bytes"_a = plan.workspace_bytes);
        },
        py::arg("problem"), py::arg("caps"), py::arg("x"), py::arg("w"), py::arg("y"),
        py::arg("bias"), py::arg("filters") = 0, py::arg("resident") = -1,
        py::arg("descending") = false, py::arg("pieces") = 0, py::arg("in_turn") = -1,
        py::arg("parts") = 0, py::arg("flat") = -1);
  // The same with the pointwise kernels. half: values are multiplied as halves first, few: by the
  // kernel of few filters, whether or not that is the faster way.
  m.def("run_pointwise",
        [](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x, uintptr_t w,
           uintptr_t y, uintptr_t bias, bool half, bool few) -> py::object {
          PointwiseShape exact = fit_pointwise_shape(problem, caps, tensor_math(problem));
          if (exact.filters == 0) return py::none();
          PointwisePlan made;
          PointwiseShape shape = exact;
          Plan plan;
          plan.engine = EngineId::kCudaPointwise;
          if (half) {
            const auto halves = find_halves(problem, 1);
            if (!halves) return py::none();
            shape = fit_pointwise_shape(problem, caps, halves->math);
            if (shape.filters == 0) return py::none();
            made.products.half = make_pointwise_fit(problem, shape);
            made.products.half->params.min_terms = halves->min_terms;
            plan.workspace_bytes = made.products.scale_bytes = halves->scale_bytes;
          }
          made.products.exact = make_pointwise_fit(problem, std::move(exact));
          if (few) {
            made.few = fit_few_filters(problem, caps);
            if (!made.few) return py::none();
          }
          plan.geometry = make_geometry(std::move(made));
          bool unfit = false;
          if (const char* fault =
                  emulate_pointwise(problem, plan, buffers_at(x, w, y, bias), unfit)) {
            throw std::runtime_error(fault);
          }
          using namespace py::literals;
          return py::dict("filter_tiles"_a = shape.filter_tiles, "chunks"_a = shape.chunks,
                          "stages"_a = shape.stages, "raw_stages"_a = shape.raw_stages,
                          "whole_rows"_a = shape.whole_rows != 0, "unfit"_a = unfit,
                          "aligned_source"_a = shape.aligned_source != 0,
                          "aligned_target"_a = shape.aligned_target != 0);
        },
        py::arg("problem"), py::arg("caps"), py::arg("x"), py::arg("w"), py::arg("y"),
        py::arg("bias"), py::arg("half") = false, py::arg("few") = false);
  // The same with the kernel of cuda_bands.
  m.def("run_phases", [](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x,
                         uintptr_t w, uintptr_t y, uintptr_t bias,
                         const std::string& variant) -> py::object {
    const Engine engine = cuda_phases_engine();
    if (std::string refusal = refusal_of(engine, problem, caps); !refusal.empty()) {
      return py::str(refusal);
    }
    const std::optional<Plan> plan =
        variant.empty() ? plan_of(engine, problem, caps) : engine.plan_variant(problem, caps, variant);
    if (!plan) return py::str("no such variant");
    if (const char* fault = emulate_phases(problem, *plan, buffers_at(x, w, y, bias))) {
      throw std::runtime_error(fault);
    }
    using namespace py::literals;
    const auto& shape = geometry_of<PhasesShape>(*plan);
    const ConvProblem& inner = shape.whole.problem;
    return py::dict("views"_a = shape.views.size(), "rows"_a = shape.rows.size(), "taps"_a = py::make_tuple(inner.R, inner.S),
                    "filters"_a = inner.K, "pixels"_a = py::make_tuple(inner.P, inner.Q),
                    "chunk_images"_a = shape.chunk_images,
                    "filters_in_place"_a = shape.filters_in_place,
                    "plane_unit"_a = shape.to_planes.unit, "unit"_a = shape.interleave.unit, "has_pixels"_a = shape.interleave.has_pixels,
                    "recomputes"_a = shape.interleave.recomputes);
  },
        py::arg("problem"), py::arg("caps"), py::arg("x"), py::arg("w"), py::arg("y"),
        py::arg("bias"), py::arg("variant") = "");
  m.def("run_bands", [](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x,
                        uintptr_t w, uintptr_t y, uintptr_t bias, const std::string& variant) {
    const Engine engine = cuda_bands_engine();
    const std::optional<Plan> plan =
        variant.empty() ? plan_of(engine, problem, caps) : engine.plan_variant(problem, caps, variant);
    if (!plan) throw std::runtime_error("no such variant");
    if (const char* fault = emulate_bands(problem, *plan, buffers_at(x, w, y, bias))) {
      throw std::runtime_error(fault);
    }
    return true;
  },
        py::arg("problem"), py::arg("caps"), py::arg("x"), py::arg("w"), py::arg("y"),
        py::arg("bias"), py::arg("variant") = "");
  m.def("fit_bands", [](const ConvProblem& problem, const DeviceCaps& caps) {
    using namespace py::literals;
    const BandsFit fit = fit_bands(problem, caps);
    const BandsParams& p = fit.params;
    return py::dict("steps"_a = fit.steps, "groups"_a = p.groups, "lead"_a = p.lead,
                    "unit"_a = p.unit, "warps"_a = p.warps,
                    "tile"_a = py::make_tuple(p.tile_images, p.tile_rows),
                    "column_tiles"_a = p.column_tiles, "products"_a = fit.products);
  });
  // The same with the kernel of cuda_diagonal.
  m.def("run_diagonal", [](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x,
                           uintptr_t w, uintptr_t y, uintptr_t bias) {
    const Plan plan = plan_of(cuda_diagonal_engine(), problem, caps);
    if (const char* fault = emulate_diagonal(problem, plan, buffers_at(x, w, y, bias))) {
      throw std::runtime_error(fault);
    }
    return true;
  });
  // How cuda_weight_grad would run a problem.
  const auto describe_wgrad = [](const Plan& plan) {
    using namespace py::literals;
    const auto& planned = geometry_of<WgradPlan>(plan);
    const WgradFit& fit = planned.scaled ? *planned.scaled : planned.exact;
    const WgradGeometry& g = fit.geometry;
    return py::dict("columns"_a = g.columns, "atom_channels"_a = g.atom_channels,
                    "is_transposed"_a = fit.is_transposed,
                    "stages_total"_a = g.stages_total,
                    "exact_flush_stages"_a = planned.exact.geometry.flush_stages,
                    "atom_axis"_a = static_cast<int>(g.atom_axis), "folds"_a = g.folds_columns,
                    "filter_tiles"_a = g.block_filter_tiles, "tap_groups"_a = g.block_tap_groups,
                    "input_source"_a = static_cast<int>(g.input_source),
                    "gradient_source"_a = static_cast<int>(g.gradient_source),
                    "is_scaled"_a = planned.scaled.has_value(),
                    "group_count"_a = g.group_count, "residues"_a = g.residue_count,
                    "channel_sets"_a = g.row_tiles.channel_sets,
                    "stages"_a = g.stages, "halo"_a = g.halo_stages,
                    "mirrored"_a = g.mirrored_stages, "slices"_a = g.slices,
                    "writes_result"_a = g.writes_result,
                    "images_end_in_gaps"_a = g.images_end_in_gaps,
                    "rounds"_a = (g.stages_total + g.round_stages - 1) / g.round_stages,
                    "pitch"_a = g.pitch, "rows"_a = g.rows, "tiles"_a = g.tiles(),
                    "microseconds"_a = plan.predicted_us, "workspace"_a = plan.workspace_bytes);
  };
  m.def("plan_weight_grad", [=](const ConvProblem& problem, const DeviceCaps& caps) {
    return describe_wgrad(plan_of(cuda_weight_grad_engine(), problem, caps));
  });
  // Runs it.
  m.def("run_weight_grad", [=](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x,
                               uintptr_t w, uintptr_t y, uintptr_t bias) {
    const Plan plan = plan_of(cuda_weight_grad_engine(), problem, caps);
    if (const char* fault = emulate_cuda_weight_grad(problem, plan, buffers_at(x, w, y, bias))) {
      throw std::runtime_error(fault);
    }
    return describe_wgrad(plan);
  });
  // The same two without its row kernels.
  const auto plan_positions = [](const ConvProblem& problem, const DeviceCaps& caps) {
    Plan plan = plan_of(cuda_weight_grad_engine(), problem, caps);
    auto planned = geometry_of<WgradPlan>(plan);
    const auto replace_rows = [&](WgradFit& fit) {
      const OperandSource source = fit.geometry.gradient_source;
      if (source != OperandSource::kRows && source != OperandSource::kRowBoxes) return;
      const bool is_rounded = fit.form == OperandForm::kTf32;
      fit = fit_positions(problem, caps, is_rounded ? exact_form(problem) : fit.form).value();
      plan.workspace_bytes = std::max(plan.workspace_bytes, kScaleBytes + fit.workspace_bytes);
    };
    replace_rows(planned.exact);
    if (planned.scaled) replace_rows(*planned.scaled);
    plan.aligned_workspace_bytes.reset();  // it was found for the rows
    plan.geometry = make_geometry(planned);
    return plan;
  };
  m.def("plan_weight_grad_positions", [=](const ConvProblem& problem, const DeviceCaps& caps) {
    return describe_wgrad(plan_positions(problem, caps));
  });
  m.def("run_weight_grad_positions", [=](const ConvProblem& problem, const DeviceCaps& caps,
                                         uintptr_t x, uintptr_t w, uintptr_t y, uintptr_t bias) {
    const Plan plan = plan_positions(problem, caps);
    if (const char* fault = emulate_cuda_weight_grad(problem, plan, buffers_at(x, w, y, bias))) {
      throw std::runtime_error(fault);
    }
    return describe_wgrad(plan);
  });
  // Runs it with the kernel of a fit, or without any if there is none. float32 values that a scaled
  // form cannot hold are left to positions.
  const auto run_fit = [=](const ConvProblem& problem, const DeviceCaps& caps,
                           const std::optional<WgradFit>& fit, const Buffers& buffers) -> py::object {
    if (!fit) return py::none();
    Plan plan = plan_of(cuda_weight_grad_engine(), problem, caps);
    WgradPlan planned{.exact = *fit};
    if (is_scaled(fit->form)) {
      planned.exact = fit_positions(problem, caps, exact_form(problem)).value();
      planned.scaled = fit;
    }
    for (const WgradFit& run : {planned.exact, *fit}) {
      plan.workspace_bytes = std::max(plan.workspace_bytes, kScaleBytes + run.workspace_bytes);
    }
    plan.aligned_workspace_bytes.reset();  // it was found for the plan's own kernels
    plan.geometry = make_geometry(planned);
    if (const char* fault = emulate_cuda_weight_grad(problem, plan, buffers)) {
      throw std::runtime_error(fault);
    }
    return describe_wgrad(plan);
  };
  m.def("run_weight_grad_rows", [=](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x,
                                    uintptr_t w, uintptr_t y, uintptr_t bias) {
    const bool scales = problem.dtype == DType::kFloat32;
    const OperandForm form = scales ? scaled_form(problem) : exact_form(problem);
    return run_fit(problem, caps, fit_rows(problem, caps, form), buffers_at(x, w, y, bias));
  });
  // writes_result: whether clusters write dW, whatever the fit says, if their slices are short
  // enough.
  m.def("run_weight_grad_boxes", [=](const ConvProblem& problem, const DeviceCaps& caps,
                                     uintptr_t x, uintptr_t w, uintptr_t y, uintptr_t bias,
                                     bool writes_result) {
    const bool rounds = problem.dtype == DType::kFloat32 && problem.precision == Precision::kTf32;
    const OperandForm form = rounds ? OperandForm::kTf32 : exact_form(problem);
    std::optional<WgradFit> fit = fit_row_boxes(problem, caps, form);
    if (fit && fit->geometry.writes_result != writes_result) {
      WgradGeometry g = fit->geometry;
      g.writes_result = writes_result;
      if (writes_result) g.slices = std::min(g.slices, kMaxClusterSlices);
      const int matrices = g.consumers() * g.row_tiles.channel_sets;
      if (!writes_result || (reserve_store(caps, matrices, g) &&
                             g.stages_total <= int64_t{g.slices} * g.flush_stages)) {
        g.by_grid_minor = FastDivmod(writes_result ? g.slices : g.slice_blocks());
        fit->geometry = g, fit->workspace_bytes = g.partial_bytes();
      }
    }
    return run_fit(problem, caps, fit, buffers_at(x, w, y, bias));
  });
  // Runs a weight gradient by cuda_direct's kernel for few filters, with tiles of so many filters,
  // transposed or not. Returns the geometry, or nothing where the kernel cannot run.
  m.def("run_direct_pixels", [](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x,
                                uintptr_t w, uintptr_t y, uintptr_t bias,
                                int filters) -> py::object {
    using namespace py::literals;
    for (int config = 0; config < kWeightGradConfigCount; ++config) {
      if (kWeightGradConfigs[config].kernel != WeightGradKernel::kPixels ||
          kWeightGradConfigs[config].filters != filters) {
        continue;
      }
      const auto shape = fit_weight_grad_config(problem, caps, config);
      if (!shape) return py::none();
      if (const char* fault = emulate_direct_pixels(problem, *shape, buffers_at(x, w, y, bias))) {
        throw std::runtime_error(fault);
      }
      return py::dict("split"_a = shape->split, "is_transposed"_a = shape->is_transposed);
    }
    return py::none();
  });
  // The same for a grouped problem.
  m.def("run_grouped", [](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x,
                          uintptr_t w, uintptr_t y, uintptr_t bias) -> py::object {
    const GroupedFit fit = fit_grouped(problem, caps);
    if (fit.blocks == 0 && fit.mma.blocks == 0 && fit.pixels.blocks == 0) return py::none();
    return run_grouped(problem, fit, buffers_at(x, w, y, bias));
  });
  // The same by tensor cores, whether or not that is the faster way.
  m.def("run_grouped_mma", [](const ConvProblem& problem, const DeviceCaps& caps, uintptr_t x,
                              uintptr_t w, uintptr_t y, uintptr_t bias) -> py::object {
    GroupedFit fit;
    fit.mma = fit_grouped_mma(problem, caps);
    if (fit.mma.blocks == 0) return py::none();
    return run_grouped(problem, fit, buffers_at(x, w, y, bias));
  });
  // Sums y into grad_bias, both given by their addresses, and says how.
  m.def("run_bias_grad", [](const ConvProblem& problem, uintptr_t y, uintptr_t grad_bias,
                            bool descending) {
    using namespace py::literals;
    const EmulatedBiasGrad run =
        emulate_bias_grad(problem, reinterpret_cast<const void*>(y),
                          reinterpret_cast<void*>(grad_bias), descending);
    if (run.fault != nullptr) throw std::runtime_error(run.fault);
    return py::dict("layout"_a = run.layout, "slices"_a = run.slices,
                    "launches"_a = run.launches);
  });
  m.def("run_separate_pass", [](const ConvProblem& problem, uintptr_t y) {
    const char* fault = emulate_separate_pass(problem, buffers_at(0, 0, y, 0));
    if (fault != nullptr) throw std::runtime_error(fault);
  });
  m.def("half_to_float", [](uint16_t bits) { return static_cast<float>(Half{bits}); });
  m.def("float_to_half", [](float value) { return Half::from_float(value).bits; });
  m.def("bfloat16_to_float", [](uint16_t bits) { return static_cast<float>(BFloat16{bits}); });
  m.def("float_to_bfloat16", [](float value) { return BFloat16::from_float(value).bits; });
}
