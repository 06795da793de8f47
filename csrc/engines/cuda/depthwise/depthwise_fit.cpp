#include "engines/cuda/depthwise/depthwise_fit.h"

#include "core/arithmetic.h"
#include "planning/gather_axis.h"
#include "planning/gather_buffers.h"

namespace convx {
namespace {

// With a large dilation, the lanes of a sliding axis can be shorter than the outputs that a thread
// computes at once. If that more than doubles the computed outputs, each tap becomes its own class.
GatherAxis fit_axis(const AxisPhase& phase, int64_t at_once) {
  const GatherAxis sliding = make_gather_axis(phase, true);
  const GatherAxis single = make_gather_axis(phase, false);
  const int64_t computed = sliding.lanes * round_up(sliding.count_per_lane(), at_once);
  return computed <= 2 * round_up(single.count, at_once) ? sliding : single;
}

DepthwiseTensors make_tensors(const ConvProblem& p, const GatherView& view, bool planes) {
  DepthwiseTensors t{};
  const Strides& from = view.source_strides;
  const Strides& to = view.target_strides;
  t.source_n = from.n, t.source_c = from.c, t.source_h = from.h, t.source_w = from.w;
  t.target_n = to.n, t.target_c = to.c, t.target_h = to.h, t.target_w = to.w;
  t.weight_k = p.w_strides.n, t.weight_r = p.w_strides.h, t.weight_s = p.w_strides.w;
  t.images = static_cast<int>(p.N);
  t.channels = static_cast<int>(p.C);
  t.multiplier = static_cast<int>(p.filters_per_group());
  t.source_height = static_cast<int>(view.source_h);
  t.source_width = static_cast<int>(view.source_w);
  t.row = make_cuda_axis(fit_axis(view.rows[0], planes ? kPlaneRows : kChannelsLastRows));
  t.column = make_cuda_axis(planes ? fit_axis(view.columns[0], kDepthwiseVector)
                                   : make_gather_axis(view.columns[0], false));
  t.by_taps = FastDivmod(p.taps());
  t.by_column_taps = FastDivmod(p.S);
  return t;
}

}  // namespace

DepthwiseLayout find_depthwise_layout(const ConvProblem& problem) {
  const GatherView view = make_gather_view(problem);
  const Strides& from = view.source_strides;
  const Strides& to = view.target_strides;
  // The NCHW kernels need target rows without gaps, as PyTorch allocates them.
  if (from.w == 1 && to.w == 1 && to.h == view.target_w) return DepthwiseLayout::kPlanes;
  if (from.c == 1 && to.c == 1) return DepthwiseLayout::kPixels;
  return DepthwiseLayout::kOther;
}

DepthwiseTensors make_plane_tensors(const ConvProblem& problem) {
  return make_tensors(problem, make_gather_view(problem), true);
}

DepthwiseTensors make_pixel_tensors(const ConvProblem& problem) {
  return make_tensors(problem, make_gather_view(problem), false);
}

DepthwiseFit fit_depthwise(const ConvProblem& problem, const DeviceCaps& caps) {
  DepthwiseFit fit;
  fit.layout = find_depthwise_layout(problem);
  if (fit.layout == DepthwiseLayout::kPlanes) {
    fit.plane.t = make_plane_tensors(problem);
    fit_planes(problem, caps, fit);
    fit_strips(problem, caps, fit);
  } else if (fit.layout == DepthwiseLayout::kPixels) {
    fit.pixel.t = make_pixel_tensors(problem);
    fit_channels_last(problem, caps, fit);
    fit_pixel_strips(problem, caps, fit);
  }
  return fit;
}

PlaneParams make_plane_params(const ConvProblem& problem, const DepthwiseFit& fit,
                              const Buffers& buffers) {
  PlaneParams params = fit.plane;
  set_gather_buffers(params.t, problem, buffers);
  const int unit = fit_unit_to_address(params.t.source, size_of(problem.dtype), params.stage.unit);
  if (unit < params.stage.unit) set_plane_unit(params, unit);
  return params;
}

StripFit make_strip_launch(const ConvProblem& problem, const DepthwiseFit& fit,
                           const Buffers& buffers) {
  DepthwiseTensors t{};
  set_gather_buffers(t, problem, buffers);
  StripFit launch = fit_strips_to_addresses(problem, fit.strip, t);
  set_gather_buffers(launch.params.t, problem, buffers);
  return launch;
}

ChannelsLastParams make_channels_last_params(const ConvProblem& problem, const DepthwiseFit& fit,
                                             const Buffers& buffers) {
  ChannelsLastParams params = fit.pixel;
  set_gather_buffers(params.t, problem, buffers);
  const int unit = fit_unit_to_address(params.t.source, size_of(problem.dtype), params.stage.unit);
  if (unit < params.stage.unit) set_channels_last_unit(params, unit);
  params.vector_stores =
      params.vector_stores && is_aligned(params.t.target, problem.dtype, kDepthwiseVector);
  return params;
}

std::optional<PixelStripParams> make_pixel_strip_params(const ConvProblem& problem,
                                                        const DepthwiseFit& fit,
                                                        const Buffers& buffers) {
  if (fit.pixel_strip.blocks == 0) return {};
  PixelStripParams params = fit.pixel_strip.params;
  set_gather_buffers(params.t, problem, buffers);
  const int channels = pixel_strip_channels(kPixelStripShapes[fit.pixel_strip.shape].taps);
  const bool aligned = is_aligned(params.t.source, problem.dtype, channels) &&
                       is_aligned(params.t.target, problem.dtype, channels);
  if (!aligned) return {};
  params.dense_weights =
      params.dense_weights && is_aligned(params.t.weight, problem.dtype, channels);
  return params;
}

}  // namespace convx
