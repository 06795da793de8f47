#include "engines/cuda/pointwise/pointwise_fit.h"

#include <algorithm>

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "planning/dense_pixels.h"
#include "planning/device_rates.h"
#include "planning/staged_rows.h"

namespace convx {
namespace {

// Bytes per microsecond for tensors that stay in L2 (near) and for others (far). With eight filters
// the accumulators take so many registers that fewer threads fit.
constexpr double kNearBytesPerUs = 7.5e6, kFarBytesPerUs = 3.9e6;
constexpr double kEightNearBytesPerUs = 3.1e6, kEightFarBytesPerUs = 2.65e6;
constexpr double kStartUs = 2;
// Threads per multiprocessor whose loads keep memory busy.
constexpr double kBusyThreads = 384;
constexpr int64_t kMaxSharedBytes = int64_t{48} << 10;

}  // namespace

std::optional<FewFiltersFit> fit_few_filters(const ConvProblem& problem, const DeviceCaps& caps) {
  if (problem.pass == Pass::kWeightGrad || !is_one_to_one(problem)) return {};
  const GatherTensors view = make_gather_tensors(problem);
  const int64_t unit = 16 / size_of(problem.dtype), plane = problem.H * problem.W;
  const int64_t units = problem.N * plane / unit;
  FewFiltersFit fit{};
  fit.groups = problem.groups;
  const int64_t filters = view.target_channels <= 2 ? 2 : view.target_channels <= 4 ? 4 : 8;
  const int64_t shared_bytes =
      4 * filters * (view.source_channels + (kFewParts - 1) * kFewUnits * unit);
  if (view.target_channels > kMaxFewFilters || shared_bytes > kMaxSharedBytes ||
      problem.groups > 65535 || units >= int64_t{1} << 31 ||
      !has_plane_units(view.source_strides, problem.H, problem.W, unit) ||
      !has_plane_units(view.target_strides, problem.H, problem.W, unit)) {
    return {};
  }
  fit.shared_bytes = narrow(shared_bytes);
  FewFiltersParams& p = fit.params;
  p.source_n = view.source_strides.n, p.source_c = view.source_strides.c;
  p.target_n = view.target_strides.n, p.target_c = view.target_strides.c;
  p.filter_target = view.weight_target_stride, p.filter_source = view.weight_source_stride;
  p.filter_group = problem.filters_per_group() * problem.w_strides.n;
  p.units = narrow(units);
  p.channels = narrow(view.source_channels);
  p.part_channels = narrow(ceil_div(view.source_channels, kFewParts));
  p.group_filters = narrow(view.target_channels);
  p.by_plane_units = FastDivmod(plane / unit);
  const double threads =
      static_cast<double>(units * kFewParts * problem.groups) / std::max(1, caps.sm_count);
  const double busy = std::min(1.0, threads / kBusyThreads);
  const double bytes = count_bytes(problem), near = find_near_share(bytes);
  const double byte_us = filters > 4
                             ? near / kEightNearBytesPerUs + (1 - near) / kEightFarBytesPerUs
                             : near / kNearBytesPerUs + (1 - near) / kFarBytesPerUs;
  fit.microseconds = kStartUs + bytes * byte_us / busy;
  return fit;
}

std::optional<FewFiltersParams> make_few_filters_params(const ConvProblem& problem,
                                                        const FewFiltersFit& fit,
                                                        const Buffers& buffers) {
  const bool forward = problem.pass == Pass::kForward;
  FewFiltersParams p = fit.params;
  p.source = forward ? buffers.x : buffers.y;
  p.target = forward ? buffers.y : buffers.x;
  p.filters = buffers.w;
  p.bias = forward && problem.epilogue.has_bias ? buffers.bias : nullptr;
  p.lowest = find_lowest(problem);
  if (!is_unit_aligned(p.source) || !is_unit_aligned(p.target)) return {};
  return p;
}

}  // namespace convx
