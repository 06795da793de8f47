// Launch functions of the depthwise kernels. Each is compiled in its own translation unit.
#pragma once

#include "core/buffers.h"
#include "cuda/check.h"
#include "engines/cuda/depthwise/depthwise_fit.h"
#include "engines/cuda/depthwise/depthwise_weight_grad_fit.h"
#include "engines/cuda/depthwise/phase_strip_fit.h"

namespace convx {

void launch_depthwise_planes(const LaunchSite& site, const DepthwiseFit& fit,
                             const Buffers& buffers);
void launch_depthwise_strips(const LaunchSite& site, const DepthwiseFit& fit,
                             const Buffers& buffers);
void launch_depthwise_pixel_strips(const LaunchSite& site, const DepthwiseFit& fit,
                                   const PixelStripParams& params);
void launch_depthwise_channels_last(const LaunchSite& site, const DepthwiseFit& fit,
                                    const Buffers& buffers);
void launch_depthwise_phase_strips(const LaunchSite& site, const PhaseStripFit& fit,
                                   const Buffers& buffers);
// First pass of weight gradients. Return the number of partial sums per weight that they leave in
// the workspace, or 0 if they have written the result.
int64_t launch_weight_grad_parts(const LaunchSite& site, const StripWeightGradFit& fit,
                                 const Buffers& buffers);
int64_t launch_weight_grad_parts(const LaunchSite& site, const PixelWeightGradFit& fit,
                                 const Buffers& buffers);
void launch_row_weight_grad(const LaunchSite& site, const RowWeightGradFit& fit,
                            const RowWeightGradParams& params);
// Second pass: adds the partial sums.
void launch_weight_grad_sums(const LaunchSite& site, const WeightGradSums& sums);

}  // namespace convx
