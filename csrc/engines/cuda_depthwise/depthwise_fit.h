// A depthwise problem that is fitted and ready to launch but for its buffers. Plain host code.
#pragma once

#include <cstdint>
#include <optional>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda_depthwise/depthwise_params.h"

namespace convx {

// Which of the tensors' axes lie side by side in memory.
enum class DepthwiseLayout : uint8_t { kPlanes, kPixels, kOther };

// The strip kernel that serves a problem, if one does.
struct StripFit {
  int shape = -1;   // in kStripShapes (strip_shapes.h); -1: none
  int columns = 0;  // of kStripColumns
  StripParams params{};
  int64_t blocks = 0;
};

// The same over pixels.
struct PixelStripFit {
  PixelStripParams params{};
  int64_t blocks = 0;  // 0: none does
};

// Plan::shape. Of the sets of parameters, the layout's is filled; perhaps that of strips too, which
// take their place.
struct DepthwiseFit {
  DepthwiseLayout layout = DepthwiseLayout::kOther;
  PlaneParams plane{};
  ChannelsLastParams pixel{};
  StripFit strip;
  PixelStripFit pixel_strip;
  int64_t blocks = 0;  // 0: no tile fits in shared memory
  int64_t shared_bytes = 0;
  bool wide = false;  // planes: the kernel that multiplies 8 column taps at a time
  double microseconds = 0;
};

// Forward, or an input gradient that is one too: stride 1 and one filter per channel.
DepthwiseFit fit_depthwise(const ConvProblem& problem, const DeviceCaps& caps);

DepthwiseLayout find_depthwise_layout(const ConvProblem& problem);

// What the kernel of the fit's layout is launched with. Addresses decide how wide copies can be.
PlaneParams make_plane_params(const ConvProblem& problem, const DepthwiseFit& fit,
                              const Buffers& buffers);
StripFit make_strip_launch(const ConvProblem& problem, const DepthwiseFit& fit,
                           const Buffers& buffers);
ChannelsLastParams make_channels_last_params(const ConvProblem& problem, const DepthwiseFit& fit,
                                             const Buffers& buffers);
// None where there are no strips over pixels, or addresses do not allow them.
std::optional<PixelStripParams> make_pixel_strip_params(const ConvProblem& problem,
                                                        const DepthwiseFit& fit,
                                                        const Buffers& buffers);

// The tensors of a problem in planes or pixels, as the forward pass or the input gradient sees
// them.
DepthwiseTensors make_plane_tensors(const ConvProblem& problem);
DepthwiseTensors make_pixel_tensors(const ConvProblem& problem);

// Behind fit_depthwise; fit holds the tensors.
void fit_planes(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);
void fit_channels_last(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);
// Keep what those have found where strips would be slower.
void fit_strips(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);
void fit_pixel_strips(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);
// Single columns where t's addresses are not aligned to the fit's.
StripFit fit_strips_to_addresses(const ConvProblem& problem, const StripFit& fit,
                                 const DepthwiseTensors& t);

// Make the copies as wide as unit elements.
void set_plane_unit(PlaneParams& params, int unit);
void set_channels_last_unit(ChannelsLastParams& params, int unit);

}  // namespace convx
