// 1x1 layers of few filters, NCHW: each thread sums 16 bytes of pixels over all channels, in
// float32. Every source value is read once, by a load of its own, and that is all there is to do:
//
//     source [channel][pixel]   a warp reads 512 bytes of a channel's plane, eight channels at a
//     time sums   [filter][pixel]    in registers
#pragma once

#include <cstdint>
#include <optional>

#include "core/buffers.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "device/fast_divmod.cuh"

namespace convx {

inline constexpr int kMaxFewFilters = 8;  // of a group
inline constexpr int kFewThreads = 128;

struct FewFiltersParams {
  const void* source;
  const void* filters;
  const void* bias;  // may be null
  void* target;

  // Distances in elements.
  int64_t source_n, source_c, target_n, target_c;
  int64_t filter_target, filter_source, filter_group;

  int units;  // of 16 bytes of pixels, of all images
  int channels, group_filters;
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
