// The launches of each operand form, compiled in files of their own.
#pragma once

#include <algorithm>

#include "cuda/check.h"
#include "engines/cuda/weight_grad/wgrad_call.h"
#include "engines/cuda/weight_grad/wgrad_geometry.h"

namespace convx {

// Blocks of the packing kernel: eight for each of 132 multiprocessors.
inline constexpr int64_t kPackBlocks = 1056;
// The same for the reduction, whose shared memory allows five.
inline constexpr int64_t kReduceBlocks = 660;

// Sets which stages the round that begins with this one has.
inline void set_stages(const WgradGeometry& g, WgradCall& call, int64_t first) {
  call.first_stage = first;
  call.stages = std::min(g.round_stages, g.stages_total - first);
  call.slice_stages = static_cast<int>(call.stages / g.slices);
  call.longer_slices = static_cast<int>(call.stages % g.slices);
  call.adds_to_partials = first > 0;
}

void run_wgrad_bfloat16(const LaunchSite&, const WgradGeometry&, const WgradCall&);
void run_wgrad_float16(const LaunchSite&, const WgradGeometry&, const WgradCall&);
void run_wgrad_scaled(const LaunchSite&, const WgradGeometry&, const WgradCall&);
void run_wgrad_scaled_x2(const LaunchSite&, const WgradGeometry&, const WgradCall&);
void run_wgrad_bf16x2(const LaunchSite&, const WgradGeometry&, const WgradCall&);
void run_wgrad_bf16x3(const LaunchSite&, const WgradGeometry&, const WgradCall&);
void run_wgrad_tf32(const LaunchSite&, const WgradGeometry&, const WgradCall&);

}  // namespace convx
