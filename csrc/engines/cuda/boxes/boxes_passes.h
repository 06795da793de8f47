// Launch functions. There is one per arithmetic, each compiled in a separate file.
#pragma once

#include "cuda/check.h"
#include "engines/cuda/boxes/boxes_params.h"

namespace convx {

// Resets the tile counters. Call before a launch with params.taken.
void clear_taken(const LaunchSite&, const BoxesParams&);

void launch_boxes_tf32(const LaunchSite&, const BoxesShape&, const BoxesParams&);
void launch_boxes_bfloat16(const LaunchSite&, const BoxesShape&, const BoxesParams&);
void launch_boxes_float16(const LaunchSite&, const BoxesShape&, const BoxesParams&);

}  // namespace convx
