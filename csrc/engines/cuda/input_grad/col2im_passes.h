// The launches of each operand format, compiled in files of their own.
#pragma once

#include "cuda/check.h"
#include "engines/cuda/input_grad/col2im_geometry.h"

namespace convx {

void launch_col2im_bfloat16(const LaunchSite& site, const Col2imParams& params);
void launch_col2im_float16(const LaunchSite& site, const Col2imParams& params);
void launch_col2im_half_tf32(const LaunchSite& site, const Col2imParams& params);
void launch_col2im_half_ieee(const LaunchSite& site, const Col2imParams& params);
void launch_col2im_ieee(const LaunchSite& site, const Col2imParams& params);

}  // namespace convx
