// A depthwise problem that is fitted and ready to launch but for its buffers. Plain host code.
#pragma once

#include <cstdint>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda_depthwise/depthwise_params.h"

namespace convx {

// Which of the tensors' axes lie side by side in memory.
enum class DepthwiseLayout : uint8_t { kPlanes, kPixels, kOther };

// Plan::shape. Of the two sets of parameters, the layout's is filled.
struct DepthwiseFit {
  DepthwiseLayout layout = DepthwiseLayout::kOther;
  PlaneParams plane{};
  ChannelsLastParams pixel{};
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
ChannelsLastParams make_channels_last_params(const ConvProblem& problem, const DepthwiseFit& fit,
                                             const Buffers& buffers);

// Behind fit_depthwise; fit holds the tensors.
void fit_planes(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);
void fit_channels_last(const ConvProblem& problem, const DeviceCaps& caps, DepthwiseFit& fit);

// Make the copies as wide as unit elements.
void set_plane_unit(PlaneParams& params, int unit);
void set_channels_last_unit(ChannelsLastParams& params, int unit);

}  // namespace convx
