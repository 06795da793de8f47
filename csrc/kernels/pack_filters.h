// Packs filters as [group][filter][tap][channel], for engines whose kernels read the channels of a
// tap one after the other. Strides are in elements.
#pragma once

#include <cstdint>

#include "core/arithmetic.h"
#include "core/problem.h"

namespace convx {

struct LaunchSite;

inline constexpr int kPackTile = 32;  // (filter, tap) pairs, and channels, that a block transposes

// Along an axis, tap t of phase k has the kernel index
//     r = first + (k + shift) mod phases + t * tap_step ,
// or weight 0 if the kernel has no such index.
struct PackAxis {
  int kernel, first, shift, tap_step;
  FastDivmod by_phases;
};

// Strides of w along the axes of the packed filters.
struct PackStrides {
  int64_t group, filter, channel, r, s;
};

// The packed filters of a group. A filter is a filter of w for one phase of the rows and one of the
// columns; phases is {1, 1} if w is packed as it is.
struct PackExtents {
  int64_t groups = 1, filters, channels;  // filters of w
  int64_t packed_channels;                // channels with padding, which is not written
  Hw taps, phases{1, 1};
};

// A row is one tap of one filter. Rows are numbered as [filter][tap] or as [tap][filter], whichever
// has neighbours in w closer together: a block reads 32 consecutive rows.
struct FilterPack {
  const void* filters;
  void* packed;
  int* cleared;  // if set, an int that becomes 0
  PackStrides strides;
  bool phase_is_slowest;         // filters are [phase][filter of w]; false: [filter of w][phase]
  bool taps_are_fastest;         // rows are [filter][tap]
  bool channels_are_contiguous;  // in w: the block copies instead of transposing
  int blocks;
  int rows, channels, packed_channels, taps;  // rows of a group
  FastDivmod by_row_tiles, by_channel_tiles;
  FastDivmod by_fastest;                                   // taps or filters
  FastDivmod by_tap_columns;                               // within a filter's taps
  FastDivmod by_filters, by_row_phases, by_column_phases;  // within a group's filters
  PackAxis r, s;
};

// Returns everything but the pointers.
inline FilterPack make_filter_pack(const PackExtents& extents, const PackStrides& strides,
                                   const PackAxis& r, const PackAxis& s, bool phase_is_slowest) {
  const int64_t filters = extents.filters * extents.phases.h * extents.phases.w;
  const int64_t taps = extents.taps.h * extents.taps.w;
  const int64_t row_tiles = ceil_div(filters * taps, kPackTile);
  const int64_t channel_tiles = ceil_div(extents.channels, kPackTile);
  FilterPack pack{};
  pack.strides = strides;
  pack.phase_is_slowest = phase_is_slowest;
  pack.taps_are_fastest = strides.s <= strides.filter;
  pack.channels_are_contiguous = strides.channel == 1;
  pack.blocks = narrow(extents.groups * row_tiles * channel_tiles);
  pack.rows = narrow(filters * taps), pack.taps = narrow(taps);
  pack.channels = narrow(extents.channels);
  pack.packed_channels = narrow(extents.packed_channels);
  pack.by_row_tiles = FastDivmod(row_tiles), pack.by_channel_tiles = FastDivmod(channel_tiles);
  pack.by_fastest = FastDivmod(pack.taps_are_fastest ? taps : filters);
  pack.by_tap_columns = FastDivmod(extents.taps.w);
  pack.by_filters = FastDivmod(extents.filters);
  pack.by_row_phases = FastDivmod(extents.phases.h);
  pack.by_column_phases = FastDivmod(extents.phases.w);
  pack.r = r, pack.s = s;
  return pack;
}

// Microseconds, estimated for an H200: a launch, and tiles read from device memory and written to
// L2. rate: the GPU's memory relative to that.
inline double predict_packing(double packed_bytes, double rate = 1) {
  constexpr double kLaunchMicroseconds = 2.4, kBytesPerMicrosecond = 2e6;
  return kLaunchMicroseconds + packed_bytes / (kBytesPerMicrosecond * rate);
}

// element_bytes: 2, 4 or 8.
void pack_filters(const LaunchSite& site, const FilterPack& pack, int64_t element_bytes);

}  // namespace convx
