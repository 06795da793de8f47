// A fitted depthwise problem, ready to launch except for its buffers. Plain host code.
#pragma once

#include <cstdint>
#include <optional>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda/depthwise/depthwise_params.h"

namespace convx {

// The axis that is contiguous in both tensors: columns (NCHW), channels (channels_last), or
// neither.
enum class DepthwiseLayout : uint8_t { kPlanes, kPixels, kOther };

// The strip kernel of a problem, if one matches.
struct StripFit {
  int shape = -1;   // index in kStripShapes (strip_shapes.h); -1: no kernel matches
  int columns = 0;  // one of kStripColumns
  StripParams params{};
  int64_t blocks = 0;
};

// The channels_last strip kernel of a problem.
struct PixelStripFit {
  int shape = -1;  // index in kPixelStripShapes
  PixelStripParams params{};
  int64_t blocks = 0;  // 0: no kernel matches
};

// Stored in Plan::shape. The tile kernel's parameters of the layout are always filled. If strips
// are predicted to be faster, theirs are filled too and take precedence.
struct DepthwiseFit {
  DepthwiseLayout layout = DepthwiseLayout::kOther;
  PlaneParams plane{};
  ChannelsLastParams pixel{};
  StripFit strip;
  PixelStripFit pixel_strip;
  int64_t blocks = 0;  // 0: no tile fits in shared memory
  int64_t shared_bytes = 0;
  bool wide = false;  // NCHW: the kernel multiplies 8 column taps at once instead of 4
  double microseconds = 0;
};

// Fits a forward pass, or an input gradient that has the same form: stride 1 and one filter per
// channel.
DepthwiseFit fit_depthwise(const ConvProblem& problem, const DeviceCaps& caps);

DepthwiseLayout find_depthwise_layout(const ConvProblem& problem);

// Complete the kernel parameters with the buffers of one call. Their alignment limits the width of
// copies.
PlaneParams make_plane_params(const ConvProblem& problem, const DepthwiseFit& fit,
                              const Buffers& buffers);
StripFit make_strip_launch(const ConvProblem& problem, const DepthwiseFit& fit,
                           const Buffers& buffers);
ChannelsLastParams make_channels_last_params(const ConvProblem& problem, const DepthwiseFit& fit,
                                             const Buffers& buffers);
// Returns nothing if the fit has no channels_last strips or the buffers are not aligned for them.
std::optional<PixelStripParams> make_pixel_strip_params(const ConvProblem& problem,
                                                        const DepthwiseFit& fit,
                                                        const Buffers& buffers);

// The tensors of a forward pass or an input gradient in NCHW or channels_last.
DepthwiseTensors make_plane_tensors(const ConvProblem& problem);
DepthwiseTensors make_pixel_tensors(const ConvProblem& problem);

// Steps of fit_depthwise; `fit` holds the tensors.
void fit_planes(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);
void fit_channels_last(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);
// Keep the previous fit if strips would be slower.
void fit_strips(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);
void fit_pixel_strips(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);
// Falls back to single columns if the addresses in `t` are not aligned for the fit's columns.
StripFit fit_strips_to_addresses(const ConvProblem& problem, const StripFit& fit,
                                 const DepthwiseTensors& t);

// Set the width of the copies to `unit` elements.
void set_plane_unit(PlaneParams& params, int unit);
void set_channels_last_unit(ChannelsLastParams& params, int unit);

}  // namespace convx
