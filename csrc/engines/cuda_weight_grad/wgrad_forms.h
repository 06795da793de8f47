// The launches of each operand form, compiled in files of their own.
#pragma once

#include "cuda/check.h"
#include "engines/cuda_weight_grad/wgrad_call.h"
#include "engines/cuda_weight_grad/wgrad_geometry.h"

namespace convx {

// Blocks of the packing kernel: eight for each of 132 multiprocessors.
inline constexpr int64_t kPackBlocks = 1056;
// The same for the reduction, whose shared memory allows five.
inline constexpr int64_t kReduceBlocks = 660;

void run_wgrad_bfloat16(const LaunchSite&, const WgradGeometry&, const WgradCall&);
void run_wgrad_float16(const LaunchSite&, const WgradGeometry&, const WgradCall&);
void run_wgrad_scaled(const LaunchSite&, const WgradGeometry&, const WgradCall&);
void run_wgrad_scaled_x2(const LaunchSite&, const WgradGeometry&, const WgradCall&);
void run_wgrad_bf16x2(const LaunchSite&, const WgradGeometry&, const WgradCall&);
void run_wgrad_bf16x3(const LaunchSite&, const WgradGeometry&, const WgradCall&);

}  // namespace convx
