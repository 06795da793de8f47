#include "engines/cuda_diagonal/cuda_diagonal_plan.h"

#include "core/gather_view.h"
#include "engines/cuda_diagonal/diagonal_fit.h"
#include "engines/cuda_limits.h"

namespace convx {
namespace {

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass == Pass::kWeightGrad) return "it computes no weight gradient";
  if (std::string refusal = refuse_split_math(p); !refusal.empty()) return refusal;
  if (p.pass == Pass::kInputGrad && p.stride != Hw{1, 1}) {
    return "it computes the input gradient for stride 1 only";
  }
  if (p.groups == 1) return "it needs groups";
  if (p.K != p.C) return "it needs as many filters as channels";
  if (count_chunk_channels(size_of(p.dtype)) % p.channels_per_group() != 0) {
    return "32 bytes of channels are no whole groups";
  }
  if (std::string refusal = refuse_before_sm_80(caps); !refusal.empty()) return refusal;
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (p.N == 0) return "the batch is empty";
  if (std::string many = refuse_many_pixels(p); !many.empty()) return many;
  if (p.x_strides.c != 1 || p.y_strides.c != 1) {
    return "channels are not neighbours in the memory of both input and output";
  }
  return fit_diagonal(p, caps).blocks == 0 ? "no tile fits in shared memory" : "";
}

Plan plan(const ConvProblem& problem, const DeviceCaps& caps) {
  auto fit = std::make_shared<DiagonalFit>(fit_diagonal(problem, caps));
  const DiagonalParams& p = fit->params;
  Plan plan;
  plan.engine = EngineId::kCudaDiagonal;
  plan.tile = {p.tile_rows, p.tile_columns,
               int64_t{p.chunks} * count_chunk_channels(size_of(problem.dtype))};
  plan.predicted_us = fit->microseconds;
  plan.shape = std::move(fit);
  return plan;
}

}  // namespace

Engine cuda_diagonal_engine() {
  return {.id = EngineId::kCudaDiagonal,
          .name = "cuda_diagonal",
          .refuse = refuse,
          .plan = plan,
          .by_name_only = true};  // its costs are reckoned, and it has still to be timed on a GPU
}

}  // namespace convx
