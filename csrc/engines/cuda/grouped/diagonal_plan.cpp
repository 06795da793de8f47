#include <algorithm>

#include "core/gather_view.h"
#include "core/text.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/grouped/diagonal_geometry.h"
#include "planning/refusals.h"

namespace convx {
namespace {

// All but whether a tile fits.
std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass == Pass::kWeightGrad) return "it computes no weight gradient";
  if (std::string refusal = refuse_split_math(p); !refusal.empty()) return refusal;
  if (p.pass == Pass::kInputGrad && std::max(p.stride.h, p.stride.w) > kDiagonalMostPhases) {
    return "it computes the input gradient for strides up to 4 only";
  }
  if (p.groups == 1) return "it needs groups";
  if (std::string refusal = refuse_before_sm_80(caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (p.N == 0) return "the batch is empty";
  if (std::string many = refuse_many_pixels(p); !many.empty()) return many;
  if (p.x_strides.c != 1 || p.y_strides.c != 1) {
    return "channels are not neighbours in the memory of both input and output";
  }
  if (std::max({p.x_strides.h, p.x_strides.w, p.y_strides.h, p.y_strides.w}) > kMaxExtent) {
    return "rows or columns are more than 2^29 elements apart";
  }
  return "";
}

Plan make_plan(DiagonalFit fit) {
  const DiagonalParams& p = fit.params;
  Plan plan;
  plan.engine = EngineId::kCudaDiagonal;
  plan.tile = {p.tile_rows, p.tile_columns,
               int64_t{p.chunks} * count_chunk_filters(fit.kernel.pieces)};
  plan.predicted_us = fit.microseconds;
  plan.geometry = make_geometry(std::move(fit));
  return plan;
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  DiagonalFit fit = fit_diagonal(problem, caps);
  if (fit.blocks == 0) return Refusal{"no tile fits in shared memory"};
  return make_plan(std::move(fit));
}

std::optional<Plan> plan_variant(const ConvProblem& problem, const DeviceCaps& caps,
                                 std::string_view variant) {
  for (const DiagonalTileSize& size : kDiagonalTileSizes) {
    if (variant != size.name) continue;
    DiagonalFit fit = fit_diagonal(problem, caps, size);
    if (fit.blocks > 0) return make_plan(std::move(fit));
  }
  return std::nullopt;
}

// Tile sizes other than the planned one.
std::vector<const char*> variants(const ConvProblem& problem, const DeviceCaps& caps) {
  const Plan chosen = make_plan(fit_diagonal(problem, caps));
  const DiagonalParams& p = geometry_of<DiagonalFit>(chosen).params;
  const int64_t pixels = chosen.tile.m * chosen.tile.n * p.row.phases * p.column.phases;
  std::vector<const char*> names;
  for (const DiagonalTileSize& size : kDiagonalTileSizes) {
    if (pixels > size.most / 2 && pixels <= size.most) continue;
    if (fit_diagonal(problem, caps, size).blocks > 0) names.push_back(size.name);
  }
  return names;
}

}  // namespace

void DiagonalFit::describe(Text& out) const {
  out << "tile " << params.tile_rows << "x" << params.tile_columns << " pixels";
  if (params.row.phases * params.column.phases > 1) out << " of a phase";
  out << " x " << params.chunks * count_chunk_filters(kernel.pieces) << " filters, "
      << kernel.warp_pixels << " pixels of a warp, " << count_text(params.depth, "source chunk");
}

Engine cuda_diagonal_engine() {
  return {.id = EngineId::kCudaDiagonal,
          .name = "cuda_diagonal",
          .consider = consider,
          .bound_us = bound_diagonal_us,
          .variants = variants,
          .plan_variant = plan_variant};
}

}  // namespace convx
