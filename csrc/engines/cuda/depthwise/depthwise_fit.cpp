#include "engines/cuda/depthwise/depthwise_geometry.h"

#include "core/arithmetic.h"
#include "planning/gather_axis.h"

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
  set_depthwise_tensors(p, view, t);
  t.images = narrow(p.N), t.channels = narrow(p.C), t.multiplier = narrow(p.filters_per_group());
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

}  // namespace convx
