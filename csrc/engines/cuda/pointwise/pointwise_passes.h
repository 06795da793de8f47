// Launch functions, one per kind of operands, each compiled in a separate file.
#pragma once

#include "cuda/check.h"
#include "engines/cuda/pointwise/few_filters.h"
#include "engines/cuda/pointwise/pointwise_fit.h"

namespace convx {

// float32 in bfloat16 components; float32 as scaled fp16, preceded by a kernel that finds the
// scales; and 16-bit tensors.
void launch_pointwise_split(const LaunchSite&, const PointwiseShape&, const PointwiseParams&);
void launch_pointwise_half(const LaunchSite&, const PointwiseShape&, const PointwiseParams&);
void launch_pointwise_narrow(const LaunchSite&, const PointwiseShape&, const PointwiseParams&);

void launch_few_filters(const LaunchSite&, const FewFiltersFit&, const FewFiltersParams&);

}  // namespace convx
