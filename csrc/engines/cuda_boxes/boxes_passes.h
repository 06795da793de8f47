// What is launched; products by one function per kind, each compiled in a file of its own.
#pragma once

#include "cuda/check.h"
#include "engines/cuda_boxes/boxes_params.h"

namespace convx {

// If tiles are counted, before they are.
void clear_taken(const LaunchSite&, const BoxesParams&);

void launch_boxes_tf32(const LaunchSite&, const BoxesShape&, const BoxesParams&);
void launch_boxes_bfloat16(const LaunchSite&, const BoxesShape&, const BoxesParams&);
void launch_boxes_float16(const LaunchSite&, const BoxesShape&, const BoxesParams&);

}  // namespace convx
