#include "core/text.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/grouped/grouped_geometry.h"
#include "planning/refusals.h"

namespace convx {
namespace {

constexpr int64_t kMostChannels = 16;  // per group, of source and target

std::string refuse(const ConvProblem& p, const DeviceCaps& caps) {
  if (p.pass == Pass::kWeightGrad) return "it computes no weight gradient";
  if (p.pass == Pass::kInputGrad && p.stride != Hw{1, 1}) {
    return "it computes the input gradient for stride 1 only";
  }
  if (p.dtype == DType::kFloat64) return "it sums in float32";
  const bool forward = p.pass == Pass::kForward;
  const int64_t source_channels = forward ? p.channels_per_group() : p.filters_per_group();
  const int64_t target_channels = forward ? p.filters_per_group() : p.channels_per_group();
  if (source_channels < 2) return "it needs at least two channels to sum over in a group";
  if (source_channels > kMostChannels || target_channels > kMostChannels) {
    return "there are more than 16 channels or filters in a group";
  }
  if (std::string large = refuse_large_extents(p); !large.empty()) return large;
  if (p.N == 0) return "the batch is empty";
  const Strides& w = p.w_strides;
  if (p.filters_per_group() * w.n + p.channels_per_group() * w.c + p.R * w.h + p.S * w.w >=
      int64_t{1} << 31) {
    return "the weights of a group are more than 2^31 elements apart";
  }
  if (!has_grouped_planes(p)) return refuse_grouped_pixels(p);
  if (!fits_grouped(p, caps)) return "no tile fits in shared memory";
  return "";
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem, caps); !why.empty()) return Refusal{why};
  Plan plan;
  plan.engine = EngineId::kCudaGrouped;
  GroupedFit fit = fit_grouped(problem, caps);
  const GroupedTask& task = fit.task();
  plan.tile = {task.tile_rows, task.tile_cols, task.tile_groups};
  if (fit.pixels.blocks > 0) {
    plan.tile = {1, kPixelStrip, fit.pixels.params.block_quads * kPixelQuad};
  }
  plan.predicted_us = fit.microseconds;
  plan.geometry = make_geometry(std::move(fit));
  return plan;
}

}  // namespace

void GroupedFit::describe(Text& out) const {
  if (pixels.blocks > 0) {
    out << "channels_last, " << pixels.params.slots << " strips of " << kPixelStrip << " pixels x "
        << pixels.params.block_quads * kPixelQuad << " filters, FFMA";
    return;
  }
  const GroupedTask& t = task();
  out << "tile " << count_text(t.tile_groups, "group") << " x " << t.tile_rows << "x" << t.tile_cols
      << " pixels of " << count_text(t.tile_images, "image") << ", ";
  if (mma.blocks > 0) {
    out << mma.kernel.cells << " cells of " << mma.kernel.filters << " filters per warp, MMA";
  } else {
    out << kernel.filters << " filters per thread, " << count_text(params.chunks, "chunk") << " of "
        << count_text(params.chunk, "channel");
    describe_stages(out, params.buffers);
    out << ", FFMA";
  }
}

Engine cuda_grouped_engine() { return {EngineId::kCudaGrouped, "cuda_grouped", consider}; }

}  // namespace convx
