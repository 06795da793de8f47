// Stores the sums of a window: through shared memory, so that neighbouring threads write
// neighbouring pixels, and whole 32-byte sectors of a filter's plane where that is what limits.
#pragma once

#include <cfloat>

#include "device/convert.cuh"
#include "engines/cuda_window/window_place.cuh"
#include "engines/cuda_window/window_units.cuh"

namespace convx {

// Where sums go: the target, or a part's own copy of it.
template <typename Out>
struct StoreTarget {
  Out* base;
  int64_t n, c, h, w;
};

// Whether a sum of split values must be formed anew: splitting infinities makes NaN of what float32
// would call infinite, and large values overflow early.
__device__ __forceinline__ bool needs_mending(float sum) { return !(fabsf(sum) <= FLT_MAX); }

// Forms such sums in float32. sums[begin..end) are those of consecutive pixels of a plane;
// point.column is the pixel (row-major) of sums[0].
static __device__ __noinline__ void mend_sums(const WindowParams& p, const TilePlace& tile,
                                              float* sums, int begin, int end,
                                              const LinePoint& point, int filter, float bias) {
  const float* source = static_cast<const float*>(p.source) + point.image * p.source_n +
                        static_cast<int64_t>(tile.group) * p.group_sources * p.source_c;
  const float* filters =
      static_cast<const float*>(p.filters) + tile.group * p.filter_group + filter * p.filter_target;
  const int taps = p.tap_rows * p.tap_columns;
  const bool folded = p.load == WindowLoad::kFolded;
  for (int n = begin; n < end; ++n) {
    if (!needs_mending(sums[n])) continue;
    const int target_row = (point.column + n) / p.target_width;
    const int target_column = (point.column + n) % p.target_width;
    float sum = 0;
    for (int tap = 0; tap < taps; ++tap) {
      const int i = tap / p.tap_columns, j = tap % p.tap_columns;
      const int row = target_row * p.source_step_h + p.offset_h0 + i * p.offset_h_step;
      const int column = target_column * p.source_step_w + p.offset_w0 + j * p.offset_w_step;
      if (static_cast<unsigned>(row) >= static_cast<unsigned>(p.source_height) ||
          static_cast<unsigned>(column) >= static_cast<unsigned>(p.source_width)) {
        continue;
      }
      const float* from = source + row * p.source_h + column * p.source_w;
      const float* weight = filters + (p.tap_r0 + i * p.tap_r_step) * p.filter_r +
                            (p.tap_s0 + j * p.tap_s_step) * p.filter_s;
      for (int c = 0; c < p.group_sources; ++c) {
        const int lane = folded ? c * taps + tap : c;
        if (lane < tile.chunk * p.chunk_channels || lane >= tile.chunk_end * p.chunk_channels) {
          continue;  // another part's
        }
        sum = fmaf(from[c * p.source_c], weight[c * p.filter_source], sum);
      }
    }
    sums[n] = sum + bias;
  }
}

// Stores 16 filters by kColumns positions of a warp, 8 filters by half the positions at a time.
template <int kColumns, bool kExact, typename Out, typename Bias>
class WindowStorer {
  static constexpr int kHalf = kColumns / 2;
  static constexpr int kPitch =
      staging_pitch(kColumns) * 4 / static_cast<int>(sizeof(Out));  // elements
  static constexpr int kUnit = 16 / static_cast<int>(sizeof(Out));
  static constexpr int kSector = 32 / static_cast<int>(sizeof(Out));

 public:
  // filter: the warp's first, within its group. bias: of this group, or null. staging: this warp's.
  __device__ __forceinline__ WindowStorer(const WindowParams& p, const StoreTarget<Out>& target,
                                          const TilePlace& tile, int window, int filter,
                                          const Bias* bias, Out* staging)
      : p_(p),
        target_(target),
        tile_(tile),
        window_(window),
        filter_(filter),
        bias_(bias),
        staging_(staging),
        lane_(threadIdx.x & 31),
        start_(locate_position(p, window)) {}

  // sums: as wgmma leaves them, see WgmmaSums.
  __device__ __forceinline__ void store(const float (&sums)[kColumns / 2]) {
    const bool to_next_image = start_.row + 1 >= p_.rows && start_.column + kColumns > p_.pitch;
    const bool flat = p_.plane_contiguous && p_.strips == 1 && p_.pitch >= kColumns &&
                      !(to_next_image && p_.pair_rows == 0);
    if (!flat) {
      store_scattered<0, 0>(sums);
      store_scattered<0, 1>(sums);
      store_scattered<1, 0>(sums);
      store_scattered<1, 1>(sums);
      return;
    }
    if (start_.image >= p_.images) return;
    // A window of a pair of rows ends with its row.
    const int rows = p_.pair_rows ? min(start_.row + 1, p_.target_height) : p_.target_height;
    end_ = rows * p_.target_width;
    if (pixel_of(0) >= end_) return;
    if constexpr (sizeof(Out) == 4) {
      if (store_sectors(sums)) return;
    }
    store_flat<0, 0>(sums);
    store_flat<0, 1>(sums);
    store_flat<1, 0>(sums);
    store_flat<1, 1>(sums);
  }

 private:
  __device__ __forceinline__ float load_bias(int filter) const {
    return bias_ != nullptr && filter < p_.group_targets ? to_accumulate(bias_[filter]) : 0.f;
  }

  static __device__ __forceinline__ float finish(float sum, float bias) {
    return kExact ? fmaf(sum, kSplitUnscale, bias) : sum + bias;
  }

  __device__ __forceinline__ int64_t filter_offset(int filter) const {
    return (static_cast<int64_t>(tile_.group) * p_.group_targets + filter) * target_.c;
  }

  // The first pixel of the plane at or after a column of the window, at most end_.
  __device__ __forceinline__ int pixel_of(int column) const {
    const int c = start_.column + column;
    const int width = p_.target_width;
    const int pixel = start_.row * width + (c < p_.pitch ? min(c, width) : width + c - p_.pitch);
    return min(pixel, end_);
  }

  // Four threads hold a sector of 8 pixels: where sectors of the target are groups of 8 columns,
  // they are written at once. Returns false if they are not.
  __device__ __forceinline__ bool store_sectors(const float (&sums)[kColumns / 2]) {
    const int first = pixel_of(0);
    const int count = pixel_of(kColumns) - first;
    Out* const plane = target_.base + start_.image * target_.n + filter_offset(filter_) + first;
    const bool one_row = p_.pair_rows || start_.column + kColumns <= p_.target_width;
    if (!one_row || p_.window_step < kColumns || target_.c % 8 != 0 || count % 8 != 0 ||
        reinterpret_cast<size_t>(plane) % 32 != 0) {
      return false;
    }
    if constexpr (kExact) {
      bool any = false;
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) any |= needs_mending(sums[i]);
      if (__any_sync(0xffffffff, any)) return false;
    }
#pragma unroll
    for (int rows = 0; rows < 2; ++rows) {
      const int filter = filter_ + lane_ / 4 + 8 * rows;
      if (filter >= p_.group_targets) break;
      const float bias = load_bias(filter);
      Out* const row = plane + (lane_ / 4 + 8 * rows) * target_.c + 2 * (lane_ & 3);
#pragma unroll
      for (int g = 0; g < kColumns / 8; ++g) {
        if (8 * g < count) {
          *reinterpret_cast<float2*>(row + 8 * g) = make_float2(
              finish(sums[4 * g + 2 * rows], bias), finish(sums[4 * g + 2 * rows + 1], bias));
        }
      }
    }
    return true;
  }

  // Stages columns [kFirst, kFirst + kCount) of filters 8*kRows.. of the warp, each where its
  // pixel's turn is: those before column in_row from the row's start on, those from column wrap on
  // gap elements earlier, and those between, which are no pixels, nowhere. Returns whether sums
  // that must be formed anew are among them.
  template <int kRows, int kFirst, int kCount>
  __device__ __forceinline__ bool stage(const float (&sums)[kColumns / 2], int shift, int in_row,
                                        int wrap, int gap) {
    const float bias = load_bias(filter_ + 8 * kRows + lane_ / 4);
    Out* const row = staging_ + lane_ / 4 * kPitch + shift + 2 * (lane_ & 3);
    bool any = false;
    __syncwarp();
#pragma unroll
    for (int g = 0; g < kCount / 8; ++g) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = 8 * g + i;
        const float sum = sums[4 * (g + kFirst / 8) + 2 * kRows + i];
        const Out value = round_to<Out>(finish(sum, bias));
        if constexpr (kExact) any |= needs_mending(sum);
        if (in_row >= kCount) {
          row[column] = value;
        } else {
          const int own = column + 2 * (lane_ & 3);
          if (own < in_row) row[column] = value;
          if (own >= wrap) row[column - gap] = value;
        }
      }
    }
    __syncwarp();
    return kExact && __any_sync(0xffffffff, any);
  }

  // The window is one run of pixels of each plane. It is stored in two halves that meet at a sector
  // of the plane: the second has a sector of the first as well.
  template <int kRows, int kPart>
  __device__ __forceinline__ void store_flat(const float (&sums)[kColumns / 2]) {
    constexpr int kFirst = kPart == 0 ? 0 : kHalf - kSector;
    constexpr int kCount = kPart == 0 ? kHalf : kHalf + kSector;
    const int filter = filter_ + 8 * kRows;
    const int filters = min(8, p_.group_targets - filter);
    if (filters <= 0) return;
    const int width = p_.target_width;
    const int column = start_.column + kFirst;  // of the row, maybe beyond
    const int first = pixel_of(kFirst), middle = pixel_of(kHalf);
    const int next = pixel_of(p_.window_step), last = pixel_of(kColumns);
    const bool overlapping = p_.window_step < kColumns && !p_.pair_rows;
    const bool meet_at_sector =
        start_.column + kHalf <= width || start_.column + kHalf - kSector >= p_.pitch;

    Out* plane = target_.base + start_.image * target_.n + filter_offset(filter);
    const int base = static_cast<int>(reinterpret_cast<size_t>(plane) / sizeof(Out));
    const int step = static_cast<int>(target_.c);
    const int in_row = column >= p_.pitch ? kCount : max(0, width - column);
    const int wrap = p_.pitch - column;
    const int gap = in_row > 0 ? p_.pitch - width : wrap;
    const int shift = (base + lane_ / 4 * step + first) & (kUnit - 1);
    const bool mend = stage<kRows, kFirst, kCount>(sums, shift, in_row, wrap, gap);

    if constexpr (kExact) {
      if (mend) mend_rows(filters, base, first, last, filter);
    }

    // Lane 4r finds out about row r: whole 16-byte units, and what is left before and after them.
    const int own = lane_ / 4;
    const int aligned = base + own * step;  // modulo a sector, of the plane's first pixel
    const auto round_down = [&](int pixel, int to) {
      return pixel - ((aligned + pixel) & (to - 1));
    };
    const auto round_up = [&](int pixel, int to) {
      return pixel + ((-(aligned + pixel)) & (to - 1));
    };
    const int meet = meet_at_sector && middle < end_ ? round_down(middle, kSector) : middle;
    int low = kPart == 0 ? first : meet;
    int high = kPart == 0 ? meet : last;
    if (overlapping && kPart == 0 && first > 0) low = round_up(first, kSector);
    if (overlapping && kPart == 1) high = min(round_up(next, kSector), last);
    const int origin = round_down(first, kUnit);
    const int units_low = min(round_up(low, kUnit), high);
    const int units_high = max(round_down(high, kUnit), units_low);
    if (own < filters) {
      Out* const own_plane = plane + own * target_.c;
      const Out* const row = staging_ + own * kPitch - origin;  // of the plane's first pixel
#pragma unroll
      for (int i = 0; i < kUnit; i += 4) {
        const int head = low + i + (lane_ & 3), tail = units_high + i + (lane_ & 3);
        if (head < units_low) own_plane[head] = row[head];
        if (tail < high) own_plane[tail] = row[tail];
      }
    }
    // Then the units, a row at a time.
    Out* to = plane + lane_ * kUnit;
    const Out* from = staging_ + lane_ * kUnit;
    const int mine = units_low - origin, count = units_high - units_low;
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      if (r >= filters) break;
      const int skip = __shfl_sync(0xffffffff, mine, 4 * r);
      const int left = __shfl_sync(0xffffffff, count, 4 * r) - lane_ * kUnit;
      const int pixel = __shfl_sync(0xffffffff, units_low, 4 * r);
      if (left > 0) {
        *reinterpret_cast<uint4*>(to + pixel) = *reinterpret_cast<const uint4*>(from + skip);
      }
      if (kCount > 32 * kUnit && left > 32 * kUnit) {
        *reinterpret_cast<uint4*>(to + pixel + 32 * kUnit) =
            *reinterpret_cast<const uint4*>(from + skip + 32 * kUnit);
      }
      to += target_.c;
      from += kPitch;
    }
  }

  // Mends staged sums.
  __device__ __forceinline__ void mend_rows(int filters, int base, int first, int last,
                                            int filter) {
    for (int r = 0; r < filters; ++r) {
      const int aligned = base + r * static_cast<int>(target_.c) + first;
      const int count = min(last - first, kHalf + kSector);
      for (int i = lane_; i < count; i += 32) {
        Out* const staged = staging_ + r * kPitch + (aligned & (kUnit - 1)) + i;
        if (!needs_mending(*staged)) continue;
        const LinePoint point{start_.image, 0, 0, first + i};
        mend_sums(p_, tile_, staged, 0, 1, point, filter + r, load_bias(filter + r));
      }
    }
    __syncwarp();
  }

  // Any layout: each lane looks up the pixels of its columns.
  template <int kRows, int kPart>
  __device__ __forceinline__ void store_scattered(const float (&sums)[kColumns / 2]) {
    constexpr int kPerLane = (kHalf + 31) / 32;
    const int filter = filter_ + 8 * kRows;
    const int filters = min(8, p_.group_targets - filter);
    if (filters <= 0) return;
    stage<kRows, kPart * kHalf, kHalf>(sums, 0, kHalf, kHalf, 0);
    Out* const first_plane = target_.base + filter_offset(filter);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int column = 32 * i + lane_;
      const LinePoint point = locate_position(p_, window_ + kPart * kHalf + column);
      // A window of a pair of rows ends with its row.
      const bool here =
          column < kHalf && is_target(p_, point) && (p_.pair_rows == 0 || point.row == start_.row);
      if (!here) continue;
      const int target_column = point.strip * p_.strip_columns + point.column;
      Out* const plane =
          first_plane + point.image * target_.n + point.row * target_.h + target_column * target_.w;
      Out* const staged = staging_ + column;
      Out values[8];
#pragma unroll
      for (int r = 0; r < 8; ++r) values[r] = staged[r * kPitch];
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        if (r >= filters) continue;
        if constexpr (kExact) {
          if (needs_mending(values[r])) {
            LinePoint pixel = point;
            pixel.column = point.row * p_.target_width + target_column;
            mend_sums(p_, tile_, staged + r * kPitch, 0, 1, pixel, filter + r,
                      load_bias(filter + r));
            values[r] = staged[r * kPitch];
          }
        }
        plane[r * target_.c] = values[r];
      }
    }
  }

  const WindowParams& p_;
  const StoreTarget<Out>& target_;
  const TilePlace& tile_;
  const int window_;  // first position
  const int filter_;
  const Bias* const bias_;
  Out* const staging_;
  const int lane_;
  const LinePoint start_;
  int end_ = 0;  // pixels of the plane that may be stored
};

}  // namespace convx
