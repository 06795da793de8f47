// The kernels' launches, each compiled in a file of its own.
#pragma once

#include "core/buffers.h"
#include "cuda/check.h"
#include "engines/cuda_depthwise/depthwise_fit.h"
#include "engines/cuda_depthwise/strip_weight_grad_fit.h"

namespace convx {

void launch_depthwise_planes(const LaunchSite& site, const DepthwiseFit& fit,
                             const Buffers& buffers);
void launch_depthwise_strips(const LaunchSite& site, const DepthwiseFit& fit,
                             const Buffers& buffers);
void launch_depthwise_pixel_strips(const LaunchSite& site, const DepthwiseFit& fit,
                                   const PixelStripParams& params);
void launch_depthwise_channels_last(const LaunchSite& site, const DepthwiseFit& fit,
                                    const Buffers& buffers);
void launch_strip_weight_grad(const LaunchSite& site, const StripWeightGradFit& fit,
                              const Buffers& buffers);

}  // namespace convx
