// 1x1 layers of few filters, NCHW: each thread sums 16 bytes of pixels over a part of the channels,
// in float32. Every source value is read once, by a load of its own, and there is not much more:
//
//     source [channel][pixel]   a warp reads 512 bytes of a plane, of eight channels at a time
//     sums   [filter][pixel]    in registers; those of the parts are added up in order
#pragma once

#include <cstdint>
#include <optional>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "device/fast_divmod.cuh"

namespace convx {

inline constexpr int kMaxFewFilters = 8;  // of a group
inline constexpr int kFewUnits = 32;      // of a block: a warp's
inline constexpr int kFewParts = 4;       // of the channels, a warp each
inline constexpr int kFewThreads = kFewParts * kFewUnits;

struct FewFiltersParams {
  const void* source;
  const void* filters;
  const void* bias;  // may be null
  void* target;

  // Distances in elements.
  int64_t source_n, source_c, target_n, target_c;
  int64_t filter_target, filter_source, filter_group;

  int units;  // of 16 bytes of pixels, of all images
  int channels, part_channels, group_filters;
  FastDivmod by_plane_units;
};

struct FewFiltersFit {
  FewFiltersParams params;
  int64_t groups;
  int shared_bytes;
  double microseconds;
};

// Nothing where it does not apply: planes must lie together, as target pixels do, in whole units.
std::optional<FewFiltersFit> fit_few_filters(const ConvProblem& problem, const DeviceCaps& caps);

// Nothing where tensors do not start at multiples of 16 bytes.
std::optional<FewFiltersParams> make_few_filters_params(const ConvProblem& problem,
                                                        const FewFiltersFit& fit,
                                                        const Buffers& buffers);

}  // namespace convx
