#include <algorithm>

#include "core/arithmetic.h"
#include "core/text.h"
#include "engines/cuda/boxes/boxes_params.h"
#include "engines/cuda/cuda_engines.h"
#include "planning/boxed_tensor.h"
#include "planning/dense_pixels.h"
#include "planning/refusals.h"
#include "planning/separate_pass.h"

namespace convx {
namespace {

// The default constraints. A padded source excludes split-K, so that refuse() need not check
// whether both fit in the workspace.
BoxesWish default_wish(const CopiedPixels& padding) { return {.parts = padding.count > 0 ? 1 : 0}; }

// All but what make_plan refuses.
std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (std::string refusal = refuse_wgmma_gather(p, caps); !refusal.empty()) return refusal;
  if (std::string many = refuse_many_pixels(p); !many.empty()) return many;
  if (p.dtype == DType::kFloat32 && p.precision != Precision::kTf32) {
    return "it computes float32 as TF32 only";
  }
  if (p.groups > 1) return "it computes one group only";
  if (p.N == 0) return "there are no images";
  if (p.pass == Pass::kForward && std::max(p.stride.h, p.stride.w) > kMaxBoxStep) {
    return "the stride is above 8";
  }
  return "";
}

// Fits the launches of boxes.problem, and adds them to the plan. Returns a refusal, or nothing.
std::string fit_launches(const DeviceCaps& caps, const BoxesWish& wish, BoxesPlan& boxes,
                         Plan& plan) {
  for (const std::vector<BoxPhase>& phases : find_box_phases(boxes.problem)) {
    BoxesShape shape = fit_boxes_shape(boxes.problem, caps, phases, wish);
    if (shape.filters == 0) return "no tile is as wished";
    if (shape.tiles() > kMaxExtent) return "it has more than 2^29 tiles";
    plan.tile = {shape.tile_boxes() * shape.box.pixels(), shape.filters, box_chunk(shape.math)};
    plan.split = shape.parts;
    plan.predicted_us += shape.microseconds;
    plan.workspace_bytes = std::max(plan.workspace_bytes, shape.workspace_bytes);
    boxes.launches.push_back(make_boxes_fit(boxes.problem, std::move(shape)));
  }
  return plan.workspace_bytes > caps.workspace_limit ? "packed filters do not fit in the workspace"
                                                     : "";
}

// Reserves so many bytes behind the workspace, and returns their offset.
int64_t reserve_copy(Plan& plan, int64_t bytes) {
  const int64_t offset = round_up(plan.workspace_bytes, kPaddingAlignment);
  plan.workspace_bytes = offset + bytes;
  return offset;
}

// NCHW: copies of as many images as fit in the workspace, an equal number in each batch.
Consideration plan_copied_planes(const ConvProblem& problem, const DeviceCaps& caps,
                                 const BoxesWish& wish) {
  for (int64_t batches = 1; batches <= problem.N; ++batches) {
    if (problem.N % batches != 0) continue;
    ConvProblem batch = problem;
    batch.N = problem.N / batches;
    const PlaneCopies planes = find_plane_copies(batch);
    if (planes.bytes() > caps.workspace_limit) continue;
    Plan plan;
    plan.engine = EngineId::kCudaBoxes;
    BoxesPlan boxes;
    boxes.problem = with_plane_copies(batch, planes);
    boxes.planes = planes, boxes.batches = batches;
    if (std::string why = fit_launches(caps, wish, boxes, plan); !why.empty()) return Refusal{why};
    plan.predicted_us += predict_plane_copies(planes);
    plan.predicted_us *= static_cast<double>(batches);
    boxes.source_offset = reserve_copy(plan, planes.source.bytes());
    boxes.target_offset = reserve_copy(plan, planes.target.bytes());
    if (plan.workspace_bytes > caps.workspace_limit) continue;
    plan.geometry = make_geometry(std::move(boxes));
    return plan;
  }
  return Refusal{"channels_last copies do not fit in the workspace"};
}

// A plan with copies of planes takes these copies besides. 1x1 kernels in NCHW take no search that
// is worth a bound.
double bound_us(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass == Pass::kWeightGrad || p.N == 0) return 0;
  const std::optional<BoxForm> form = find_box_form(with_padded_source(p, find_source_padding(p)));
  if (form && form != BoxForm::kPixels) return 0;
  const double copies_us = form ? 0 : predict_plane_copies(find_plane_copies(p));
  return kBoundFactor * copies_us + bound_pixel_boxes(p, caps);
}

Consideration make_plan(const ConvProblem& problem, const DeviceCaps& caps,
                        std::optional<BoxesWish> wished = std::nullopt) {
  const CopiedPixels padding = find_source_padding(problem);
  const BoxesWish wish = wished.value_or(default_wish(padding));
  const ConvProblem padded = with_padded_source(problem, padding);
  const std::optional<BoxForm> form = find_box_form(padded);
  if (!form) return plan_copied_planes(problem, caps, wish);
  Plan plan;
  plan.engine = EngineId::kCudaBoxes;
  const bool pixels = form == BoxForm::kPixels;
  BoxesPlan boxes;
  boxes.problem = pixels ? flatten_pixels(padded, 1) : padded;
  boxes.padding = padding;
  if (std::string why = fit_launches(caps, wish, boxes, plan); !why.empty()) return Refusal{why};
  if (padding.count > 0) {
    plan.predicted_us += predict_padding(padding);
    boxes.padding_offset = reserve_copy(plan, padding.bytes());
    if (plan.workspace_bytes > caps.workspace_limit) {
      return Refusal{"a padded source does not fit in the workspace"};
    }
  }
  plan.geometry = make_geometry(std::move(boxes));
  return plan;
}

std::optional<Plan> find_plan(Consideration answer) {
  if (Plan* plan = std::get_if<Plan>(&answer)) return std::move(*plan);
  return std::nullopt;
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  return make_plan(problem, caps);
}

// A variant is a number of filters or of pieces per tile, or a number of split-K slices.
struct BoxesVariant {
  const char* name;
  BoxesWish wish;
};
constexpr BoxesVariant kVariants[] = {
    {"tiles_64", {.filters = 64, .parts = 1}},
    {"tiles_128", {.filters = 128, .parts = 1}},
    {"tiles_192", {.filters = 192, .parts = 1}},
    {"tiles_256", {.filters = 256, .parts = 1}},
    {"pieces_1", {.pieces = 1, .parts = 1}},
    {"pieces_2", {.pieces = 2, .parts = 1}},
    {"parts_2", {.parts = 2}},
    {"parts_3", {.parts = 3}},
    {"parts_4", {.parts = 4}},
    {"parts_5", {.parts = 5}},
    {"parts_6", {.parts = 6}},
    {"parts_8", {.parts = 8}},
    {"parts_12", {.parts = 12}},
};

std::optional<Plan> plan_variant(const ConvProblem& problem, const DeviceCaps& caps,
                                 std::string_view variant) {
  for (const BoxesVariant& known : kVariants) {
    if (variant == known.name) return find_plan(make_plan(problem, caps, known.wish));
  }
  return std::nullopt;
}

// Variants that differ from the chosen plan. Skipped are larger tiles of which half or more would
// be empty.
std::vector<const char*> variants(const ConvProblem& problem, const DeviceCaps& caps) {
  std::vector<Plan> plans = {std::get<Plan>(make_plan(problem, caps))};
  const int64_t chosen = plans[0].tile.n;
  const int64_t targets = make_gather_tensors(problem).target_channels;
  std::vector<const char*> names;
  for (const BoxesVariant& known : kVariants) {
    const int64_t filters = known.wish.filters;
    if (filters > chosen && filters / 2 >= targets) continue;
    const std::optional<Plan> other = find_plan(make_plan(problem, caps, known.wish));
    // With few chunks, two wishes may give the same number of slices.
    const auto is_same = [&](const Plan& p) {
      return p.tile.m == other->tile.m && p.tile.n == other->tile.n && p.split == other->split;
    };
    if (!other || std::any_of(plans.begin(), plans.end(), is_same)) continue;
    plans.push_back(*other);
    names.push_back(known.name);
  }
  return names;
}

}  // namespace

void BoxesShape::describe(Text& out) const {
  constexpr const char* kForms[] = {"pixels", "plane lines", "planes", "planes in pairs", "spans"};
  out << "tile " << pieces << " x ";
  if (flat_pitch > 0) {
    out << box.pixels() << " consecutive pixels";
  } else if (form == BoxForm::kPixels) {
    out << box.images << "x" << box.rows << "x" << box.columns << " pixels";
  } else {
    out << kBoxPixels << " pixels in " << kForms[static_cast<int>(form)];
  }
  out << " x " << filters << " filters";
  describe_stages(out, stages);
  describe_split(out, parts);
  if (whole_tiles > 0) out << " of the last tiles";
  if (resident) out << ", resident filters";
  if (in_turn) out << ", tiles in turn";
  out << ", " << name_of(math);
}

void BoxesPlan::describe(Text& out) const {
  if (padding.count > 0) out << "padded copy of the source, ";
  if (planes.source.exists() && planes.target.exists()) {
    out << "channels_last copies";
  } else if (planes.source.exists() || planes.target.exists()) {
    out << "channels_last copy of the " << (planes.source.exists() ? "source" : "target");
  }
  if (batches > 1) out << " of " << problem.N << " images";
  if (planes.bytes() > 0) out << ", ";
  write_counted(out, launches, "kernel",
                [](Text& line, const BoxesFit& fit) { fit.shape.describe(line); });
}

Engine cuda_boxes_engine() {
  return {.id = EngineId::kCudaBoxes,
          .name = "cuda_boxes",
          .consider = consider,
          .bound_us = bound_us,
          .typical_ratio = 1.25,
          .separate_pass_us = pass_us_unless_relu,
          .variants = variants,
          .plan_variant = plan_variant};
}

}  // namespace convx
