// Stores the sums of a window: through shared memory, so that neighbouring threads write
// neighbouring pixels, and whole 32-byte sectors of a filter's plane where that is what limits.
#pragma once

#include "device/convert.cuh"
#include "engines/cuda_window/window_place.cuh"
#include "engines/cuda_window/window_units.cuh"
#include "engines/tensor_types.cuh"

namespace convx {

// Where sums go: the target, or a part's own copy of it.
template <typename Out>
struct StoreTarget {
  Out* base;
  int64_t n, c, h, w;
};

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
    if (flat) {
      if (start_.image >= p_.images) return;
      // A window of a pair of rows ends with its row.
      const int rows = p_.pair_rows ? min(start_.row + 1, p_.target_height) : p_.target_height;
      end_ = rows * p_.target_width;
      if (pixel_of(0) >= end_) return;
      if constexpr (sizeof(Out) == 4) {
        if (store_sectors(sums)) return;
      }
    }
    // A loop, so that all but staging, which indexes registers, is there once: code that is large
    // has to be fetched again and again.
#pragma unroll 1
    for (int part = 0; part < 4; ++part) {
      const int half = part & 1;
      const int filter = filter_ + part / 2 * 8;
      const int filters = min(8, p_.group_targets - filter);
      if (filters <= 0) break;
      const FlatRun run = flat ? find_run(half, filter) : FlatRun{0, 0, 0, kColumns, kColumns, 0};
      bool mend = false;
      switch (part) {
        case 0:
          mend = stage<0, 0>(sums, run);
          break;
        case 1:
          mend = stage<0, 1>(sums, run);
          break;
        case 2:
          mend = stage<1, 0>(sums, run);
          break;
        default:
          mend = stage<1, 1>(sums, run);
      }
      if (flat) {
        store_flat(run, half, filter, filters, mend);
      } else {
        store_scattered(half, filter, filters);
      }
    }
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
      for (int i = 0; i < kColumns / 2; ++i) any |= is_spoilt(sums[i]);
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

  // Parts are halves of the columns; the second has a sector of the first as well, so that both can
  // end at a sector of the plane.
  static constexpr int first_column(int half) { return half == 0 ? 0 : kHalf - kSector; }

  // Where in a staged row the columns of a part go: those before column in_row from shift on, those
  // from column wrap on gap elements earlier, and those between, which are no pixels, nowhere.
  struct FlatRun {
    int first;  // pixel of the plane that the part starts with
    int base;   // the first filter's plane, in elements
    int shift;  // of this lane's row
    int in_row, wrap, gap;
  };

  __device__ __forceinline__ FlatRun find_run(int half, int filter) const {
    const Out* plane = target_.base + start_.image * target_.n + filter_offset(filter);
    const int column = start_.column + first_column(half);  // of the row, maybe beyond
    FlatRun run;
    run.first = pixel_of(first_column(half));
    run.base = static_cast<int>(reinterpret_cast<size_t>(plane) / sizeof(Out));
    run.shift = (run.base + lane_ / 4 * static_cast<int>(target_.c) + run.first) & (kUnit - 1);
    run.in_row = column >= p_.pitch ? kColumns : max(0, p_.target_width - column);
    run.wrap = p_.pitch - column;
    run.gap = run.in_row > 0 ? p_.pitch - p_.target_width : run.wrap;
    return run;
  }

  // Stages a part of filters 8*kRows.. of the warp. Returns whether sums must be formed anew.
  template <int kRows, int kPart>
  __device__ __forceinline__ bool stage(const float (&sums)[kColumns / 2], const FlatRun& run) {
    constexpr int kFirst = first_column(kPart);
    constexpr int kCount = kPart == 0 ? kHalf : kHalf + kSector;
    const float bias = load_bias(filter_ + 8 * kRows + lane_ / 4);
    Out* const row = staging_ + lane_ / 4 * kPitch + run.shift + 2 * (lane_ & 3);
    bool any = false;
    const bool whole = run.in_row >= kCount;
    __syncwarp();
#pragma unroll
    for (int g = 0; g < kCount / 8; ++g) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = 8 * g + i;
        const float sum = sums[4 * (g + kFirst / 8) + 2 * kRows + i];
        const Out value = round_to<Out>(finish(sum, bias));
        if constexpr (kExact) any |= is_spoilt(sum);
        if (whole) {
          row[column] = value;
        } else {
          const int own = column + 2 * (lane_ & 3);
          if (own < run.in_row) row[column] = value;
          if (own >= run.wrap) row[column - run.gap] = value;
        }
      }
    }
    __syncwarp();
    return kExact && __any_sync(0xffffffff, any);
  }

  // The part is one run of pixels of each plane.
  __device__ __forceinline__ void store_flat(const FlatRun& run, int half, int filter, int filters,
                                             bool mend) {
    const int first = run.first, middle = pixel_of(kHalf);
    const int next = pixel_of(p_.window_step), last = pixel_of(kColumns);
    const bool overlapping = p_.window_step < kColumns && !p_.pair_rows;
    const bool meet_at_sector =
        start_.column + kHalf <= p_.target_width || start_.column + kHalf - kSector >= p_.pitch;
    Out* const plane = target_.base + start_.image * target_.n + filter_offset(filter);
    if constexpr (kExact) {
      if (mend) mend_rows(filters, run.base, first, last, filter);
    }

    // Lane 4r finds out about row r: whole 16-byte units, and what is left before and after them.
    const int own = lane_ / 4;
    const int aligned = run.base + own * static_cast<int>(target_.c);  // modulo a sector
    const auto round_down = [&](int pixel, int to) {
      return pixel - ((aligned + pixel) & (to - 1));
    };
    const auto round_up = [&](int pixel, int to) {
      return pixel + ((-(aligned + pixel)) & (to - 1));
    };
    const int meet = meet_at_sector && middle < end_ ? round_down(middle, kSector) : middle;
    int low = half == 0 ? first : meet;
    int high = half == 0 ? meet : last;
    if (overlapping && half == 0 && first > 0) low = round_up(first, kSector);
    if (overlapping && half == 1) high = min(round_up(next, kSector), last);
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
    // Then the units, four rows at a time.
    const int mine = units_low - origin, count = units_high - units_low;
    Out* to = plane + lane_ * kUnit;
    const Out* from = staging_ + lane_ * kUnit;
#pragma unroll 1
    for (int r0 = 0; r0 < filters; r0 += 4) {
      uint4 units[4];
      int pixels[4], lefts[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int skip = __shfl_sync(0xffffffff, mine, 4 * (r0 + r));
        pixels[r] = __shfl_sync(0xffffffff, units_low, 4 * (r0 + r));
        lefts[r] = __shfl_sync(0xffffffff, count, 4 * (r0 + r)) - lane_ * kUnit;
        if (r0 + r >= filters) lefts[r] = 0;
        if (lefts[r] > 0) units[r] = *reinterpret_cast<const uint4*>(from + r * kPitch + skip);
        if (kHalf + kSector > 32 * kUnit && lefts[r] > 32 * kUnit) {
          *reinterpret_cast<uint4*>(to + r * target_.c + pixels[r] + 32 * kUnit) =
              *reinterpret_cast<const uint4*>(from + r * kPitch + skip + 32 * kUnit);
        }
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (lefts[r] > 0) *reinterpret_cast<uint4*>(to + pixels[r]) = units[r];
        to += target_.c;
      }
      from += 4 * kPitch;
    }
  }

  // pixel: of the target's plane.
  __device__ __forceinline__ void mend(Out& staged, int image, int pixel, int filter) const {
    if (!is_spoilt(staged)) return;
    const SpoiltSum at{tile_.group,
                       filter,
                       image,
                       pixel / p_.target_width,
                       pixel % p_.target_width,
                       tile_.chunk * p_.chunk_channels,
                       tile_.chunk_end * p_.chunk_channels,
                       p_.load == WindowLoad::kFolded};
    staged = mend_sum(p_, at) + load_bias(filter);
  }

  // Mends staged sums.
  __device__ __forceinline__ void mend_rows(int filters, int base, int first, int last,
                                            int filter) {
    for (int r = 0; r < filters; ++r) {
      const int aligned = base + r * static_cast<int>(target_.c) + first;
      const int count = min(last - first, kHalf + kSector);
      for (int i = lane_; i < count; i += 32) {
        Out* const staged = staging_ + r * kPitch + (aligned & (kUnit - 1)) + i;
        mend(*staged, start_.image, first + i, filter + r);
      }
    }
    __syncwarp();
  }

  // Any layout: each lane looks up the pixels of its columns.
  __device__ __forceinline__ void store_scattered(int half, int filter, int filters) {
    constexpr int kPerLane = (kHalf + 31) / 32;
    Out* const first_plane = target_.base + filter_offset(filter);
    Out* const first_staged = staging_ + (half == 0 ? 0 : kSector) + lane_;
#pragma unroll 1
    for (int i = 0; i < kPerLane; ++i) {
      const int column = 32 * i + lane_;
      const LinePoint point = locate_position(p_, window_ + half * kHalf + column);
      // A window of a pair of rows ends with its row.
      const bool in_row =
          p_.pair_rows == 0 || (point.row == start_.row && point.image == start_.image);
      const bool here = column < kHalf && is_target(p_, point) && in_row;
      if (!here) continue;
      const int target_column = point.strip * p_.strip_columns + point.column;
      Out* plane =
          first_plane + point.image * target_.n + point.row * target_.h + target_column * target_.w;
      Out* const staged = first_staged + 32 * i;
      Out values[8];
#pragma unroll
      for (int r = 0; r < 8; ++r) values[r] = staged[r * kPitch];
      if constexpr (kExact) {
        bool spoilt = false;
#pragma unroll
        for (int r = 0; r < 8; ++r) spoilt |= is_spoilt(values[r]);
        if (spoilt) {
          const int pixel = point.row * p_.target_width + target_column;
#pragma unroll 1
          for (int r = 0; r < filters; ++r) {
            mend(staged[r * kPitch], point.image, pixel, filter + r);
          }
#pragma unroll
          for (int r = 0; r < 8; ++r) values[r] = staged[r * kPitch];
        }
      }
      if (filters == 8) {
#pragma unroll
        for (int r = 0; r < 8; ++r, plane += target_.c) *plane = values[r];
      } else {
#pragma unroll
        for (int r = 0; r < 8; ++r, plane += target_.c) {
          if (r < filters) *plane = values[r];
        }
      }
    }
    __syncwarp();
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
