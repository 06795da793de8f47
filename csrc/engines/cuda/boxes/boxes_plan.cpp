#include <algorithm>

#include "core/arithmetic.h"
#include "core/text.h"
#include "engines/cuda/boxes/boxes_params.h"
#include "engines/cuda/cuda_engines.h"
#include "planning/boxed_tensor.h"
#include "planning/dense_pixels.h"
#include "planning/refusals.h"

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
  const CopiedPixels padding = find_source_padding(p);
  const ConvProblem padded = with_padded_source(p, padding);
  if (!find_box_form(padded)) {
    return "it takes channels_last tensors, and 1x1 layers of stride 1 whose planes have no gaps";
  }
  if (p.pass == Pass::kForward && std::max(p.stride.h, p.stride.w) > kMaxBoxStep) {
    return "the stride is above 8";
  }
  return "";
}

Consideration make_plan(const ConvProblem& problem, const DeviceCaps& caps,
                        std::optional<BoxesWish> wished = std::nullopt) {
  Plan plan;
  plan.engine = EngineId::kCudaBoxes;
  const CopiedPixels padding = find_source_padding(problem);
  const BoxesWish wish = wished.value_or(default_wish(padding));
  const ConvProblem padded = with_padded_source(problem, padding);
  const bool pixels = find_box_form(padded) == BoxForm::kPixels;
  BoxesPlan boxes{pixels ? flatten_pixels(padded, 1) : padded, {}, padding};
  for (const std::vector<BoxPhase>& phases : find_box_phases(boxes.problem)) {
    BoxesShape shape = fit_boxes_shape(boxes.problem, caps, phases, wish);
    if (shape.filters == 0) return Refusal{"no tile is as wished"};
    if (shape.tiles() > kMaxExtent) return Refusal{"it has more than 2^29 tiles"};
    plan.tile = {shape.tile_boxes() * shape.box.pixels(), shape.filters, box_chunk(shape.math)};
    plan.split = shape.parts;
    plan.predicted_us += shape.microseconds;
    plan.workspace_bytes = std::max(plan.workspace_bytes, shape.workspace_bytes);
    boxes.launches.push_back(make_boxes_fit(boxes.problem, std::move(shape)));
  }
  if (plan.workspace_bytes > caps.workspace_limit) {
    return Refusal{"packed filters do not fit in the workspace"};
  }
  if (padding.count > 0) {
    plan.predicted_us += predict_padding(padding);
    boxes.padding_offset = round_up(plan.workspace_bytes, kPaddingAlignment);
    plan.workspace_bytes = boxes.padding_offset + padding.bytes();
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
  write_counted(out, launches, "kernel",
                [](Text& line, const BoxesFit& fit) { fit.shape.describe(line); });
}

Engine cuda_boxes_engine() {
  return {.id = EngineId::kCudaBoxes,
          .name = "cuda_boxes",
          .consider = consider,
          .variants = variants,
          .plan_variant = plan_variant};
}

}  // namespace convx
