#include <array>
#include <utility>

#include "core/text.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/input_grad/phases_shape.h"
#include "planning/refusals.h"

namespace convx {
namespace {

struct NamedForm {
  const char* name;
  PhasesForm form;
};
constexpr NamedForm kForms[] = {{"channels", PhasesForm::kChannels},
                                {"views", PhasesForm::kViews},
                                {"rows", PhasesForm::kRows},
                                {"transposed", PhasesForm::kTransposed}};
// The forms in the order of their search. The best time ends the search of later ones, so that the
// form with fewer products comes first.
std::array<PhasesForm, 4> list_forms(const ConvProblem& problem) {
  const bool rows_first = count_phase_products(problem, PhasesForm::kRows) <=
                          count_phase_products(problem, PhasesForm::kChannels);
  const PhasesForm first = rows_first ? PhasesForm::kRows : PhasesForm::kChannels;
  const PhasesForm last = rows_first ? PhasesForm::kChannels : PhasesForm::kRows;
  return {PhasesForm::kTransposed, first, PhasesForm::kViews, last};
}

// The engine of an inner convolution, and what it does.
void describe_inner(Text& out, const InnerProblem& inner) {
  for (const Engine& engine : cuda_engines()) {
    if (engine.id == inner.plan.engine) out << engine.name << " (";
  }
  inner.plan.geometry->describe(out);
  out << ")";
}

std::optional<PhasesShape> fit_best(const ConvProblem& problem, const DeviceCaps& caps,
                                    double give_up_us = kNeverGiveUp) {
  std::optional<PhasesShape> best;
  for (const PhasesForm form : list_forms(problem)) {
    std::optional<PhasesShape> shape = fit_phases(problem, caps, form, give_up_us);
    if (!shape || shape->microseconds >= give_up_us) continue;
    give_up_us = shape->microseconds;
    best = std::move(shape);
  }
  return best;
}

// All but whether a form fits.
std::string refuse(const ConvProblem& p) {
  if (p.pass != Pass::kInputGrad) return "it computes input gradients only";
  if (p.stride == Hw{1, 1}) return "the stride is 1";
  if (p.N == 0) return "the batch is empty";
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  return refuse_large_images(p);
}

Plan make_plan(PhasesShape shape) {
  const Plan& inner = shape.form == PhasesForm::kViews  ? shape.views.front().plan
                      : shape.form == PhasesForm::kRows ? shape.rows.front().plan
                                                        : shape.whole.plan;
  Plan plan;
  plan.engine = EngineId::kCudaPhases;
  plan.tile = inner.tile;
  plan.split = inner.split;
  plan.halves = inner.halves;
  plan.workspace_bytes = shape.workspace_bytes;
  plan.predicted_us = shape.microseconds;
  plan.geometry = make_geometry(std::move(shape));
  return plan;
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps,
                       const SearchLimits& limits) {
  if (std::string why = refuse(problem); !why.empty()) return Refusal{why};
  std::optional<PhasesShape> best = fit_best(problem, caps, limits.give_up_us);
  if (best) return make_plan(std::move(*best));
  return Refusal{
      "stride and dilation meet along an axis, or an image does not fit in the workspace"};
}

std::optional<Plan> plan_variant(const ConvProblem& problem, const DeviceCaps& caps,
                                 std::string_view variant) {
  for (const NamedForm& known : kForms) {
    if (variant != known.name) continue;
    if (std::optional<PhasesShape> shape = fit_phases(problem, caps, known.form)) {
      return make_plan(std::move(*shape));
    }
  }
  return std::nullopt;
}

// The forms that were not chosen, if the problem has them.
std::vector<const char*> variants(const ConvProblem& problem, const DeviceCaps& caps) {
  const std::optional<PhasesShape> chosen = fit_best(problem, caps);
  std::vector<const char*> names;
  for (const NamedForm& known : kForms) {
    if (known.form != chosen->form && fit_phases(problem, caps, known.form)) {
      names.push_back(known.name);
    }
  }
  return names;
}

}  // namespace

void PhasesShape::describe(Text& out) const {
  for (const NamedForm& known : kForms) {
    if (known.form == form) out << known.name << " form, ";
  }
  if (form == PhasesForm::kViews) return write_counted(out, views, "view", describe_inner);
  if (form == PhasesForm::kRows) return write_counted(out, rows, "row phase", describe_inner);
  out << count_text(chunk_images, "image") << " at a time, ";
  describe_inner(out, whole);
}

Engine cuda_phases_engine() {
  return {.id = EngineId::kCudaPhases,
          .name = "cuda_phases",
          .consider = consider,
          .bound_us = bound_phases_us,
          .typical_ratio = 9,
          .variants = variants,
          .plan_variant = plan_variant};
}

}  // namespace convx
