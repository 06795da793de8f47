// The kernels that run before and after a convolution on tensor cores: measure() finds the scales
// of scaled fp16, and sum_partials() adds the partial sums of split-K slices.
#pragma once

#include "planning/tensor_params.h"

namespace convx {

struct LaunchSite;

// Writes params.scales.
void measure(const LaunchSite& site, const TensorParams& params);

// Adds `splits` slices into a target of any dtype but float64.
void sum_partials(const LaunchSite& site, const TensorParams& params, int splits);

}  // namespace convx
