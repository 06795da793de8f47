// One function per kind of product, each compiled in a file of its own.
#pragma once

#include "cuda/check.h"
#include "engines/cuda_boxes/boxes_params.h"

namespace convx {

void launch_boxes_tf32(const LaunchSite&, const BoxesShape&, const BoxesParams&);
void launch_boxes_bfloat16(const LaunchSite&, const BoxesShape&, const BoxesParams&);
void launch_boxes_float16(const LaunchSite&, const BoxesShape&, const BoxesParams&);

}  // namespace convx
