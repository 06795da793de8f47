// One launch function per operand format. Each is compiled in its own file.
#pragma once

#include "cuda/check.h"
#include "engines/cuda_lines/window_fit.h"

namespace convx {

void launch_lines_tf32(const LaunchSite&, const WindowShape&, const WindowParams&);
void launch_lines_ieee(const LaunchSite&, const WindowShape&, const WindowParams&);
void launch_lines_bfloat16(const LaunchSite&, const WindowShape&, const WindowParams&);
void launch_lines_float16(const LaunchSite&, const WindowShape&, const WindowParams&);
void launch_lines_half_tf32(const LaunchSite&, const WindowShape&, const WindowParams&);
void launch_lines_half_ieee(const LaunchSite&, const WindowShape&, const WindowParams&);

}  // namespace convx
