// Adds the partial sums of split-K slices.
#pragma once

#include "planning/tensor_params.h"

namespace convx {

struct LaunchSite;

// Launches the kernel of sum_partials.cu for a target of any dtype but float64.
void sum_partials(const LaunchSite& site, const TensorParams& params, int splits);

}  // namespace convx
