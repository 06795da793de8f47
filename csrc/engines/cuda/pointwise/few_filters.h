// 1x1 layers of NCHW tensors with few filters. Each thread sums 16 bytes of pixels over a quarter
// of the channels, in float32, with every source value read once (few_filters_launch.cu).
#pragma once

#include <cstdint>
#include <optional>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"

namespace convx {

struct LaunchSite;

inline constexpr int kMaxFewFilters = 8;  // per group
inline constexpr int kFewUnits = 32;      // 16-byte units per block, one per lane
inline constexpr int kFewParts = 4;       // slices of the channels, one per warp
inline constexpr int kFewThreads = kFewParts * kFewUnits;

struct FewFiltersParams {
  const void* source;
  const void* filters;
  const void* bias;  // may be null
  void* target;

  // Strides in elements.
  int64_t source_n, source_c, target_n, target_c;
  int64_t filter_target, filter_source, filter_group;

  int units;  // 16-byte units of pixels, of all images
  int channels, part_channels, group_filters;
  FastDivmod by_plane_units;
};

struct FewFiltersFit {
  FewFiltersParams params;
  int64_t groups;
  int shared_bytes;
  double microseconds;
};

// Empty unless the layer has few filters, planes are contiguous in both tensors, and they are whole
// 16-byte units.
std::optional<FewFiltersFit> fit_few_filters(const ConvProblem& problem, const DeviceCaps& caps);

// Empty if a tensor does not start at a multiple of 16 bytes.
std::optional<FewFiltersParams> make_few_filters_params(const ConvProblem& problem,
                                                        const FewFiltersFit& fit,
                                                        const Buffers& buffers);

void launch_few_filters(const LaunchSite& site, const FewFiltersFit& fit,
                        const FewFiltersParams& params);

}  // namespace convx
