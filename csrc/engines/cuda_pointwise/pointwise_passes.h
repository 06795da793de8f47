// The kernels by what they multiply, compiled in files of their own.
#pragma once

#include "cuda/check.h"
#include "engines/cuda_pointwise/few_filters.h"
#include "engines/cuda_pointwise/pointwise_fit.h"

namespace convx {

// float32 as parts of bfloat16; as float16, with measuring before; and 16-bit values as they are.
void launch_pointwise_split(const LaunchSite&, const PointwiseShape&, const PointwiseParams&);
void launch_pointwise_half(const LaunchSite&, const PointwiseShape&, const PointwiseParams&);
void launch_pointwise_narrow(const LaunchSite&, const PointwiseShape&, const PointwiseParams&);

void launch_few_filters(const LaunchSite&, const FewFiltersFit&, const FewFiltersParams&);

}  // namespace convx
