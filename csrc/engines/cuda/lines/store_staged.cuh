// Second half of the epilogue: results go from the staging buffer (staging.cuh) to the target.
#pragma once

#include "device/async_copy.cuh"
#include "device/convert.cuh"
#include "device/mbarrier.cuh"
#include "device/warp_roles.cuh"
#include "engines/cuda/lines/staging.cuh"
#include "kernels/finish.cuh"

namespace convx {

// Stores the results that one warpgroup has staged. Called by one warp: its elected lane issues
// bulk copies of whole 16-byte units, which run at memory bandwidth, and waits for them. All lanes
// store the remaining elements.
template <TensorMath kMath, int kColumns, Pace kPace, typename Out, typename Bias>
class StagedStorer {
  static constexpr bool kExact = kMath == TensorMath::kIeee;
  static constexpr int kPitch = kStagingPitch<Out, kColumns, kPace>;
  static constexpr int kUnit = kStoreUnit<Out>;
  static constexpr int kUnitPairs = kUnit / 2;
  static constexpr int kSector = 32 / static_cast<int>(sizeof(Out));
  static constexpr int kStep = kPartStep<Out, kColumns, kPace>;
  using Runs = WindowRuns<Out, kColumns, kPace>;

 public:
  // filter: the warpgroup's first, within its group. bias: the group's, or null; used only for
  // accumulators that are recomputed.
  __device__ __forceinline__ StagedStorer(const WindowParams& p, const StoreTarget<Out>& target,
                                          const TilePlace& tile, int window, int filter,
                                          const Bias* bias, Out* staging, const void* target_map)
      : p_(p),
        target_(target),
        tile_(tile),
        window_(window),
        filter_(filter),
        filters_(min(kWindowFilters, p.group_targets - filter)),
        bias_(bias),
        staging_(staging),
        target_map_(target_map),
        lane_(threadIdx.x & 31) {}

  // Stores a part of the window. The addresses of runs are computed before wait(), which returns
  // once the part is staged, and says whether some accumulators must be recomputed. When store
  // returns to the elected lane (elect_lane), the staging buffer has been read and may be released.
  template <typename Wait>
  __device__ __forceinline__ void store(int part, const Wait& wait) const {
    if (p_.even_runs && !is_wide()) return store_runs(part, wait);
    const bool must_recompute = wait();
    if (filters_ <= 0) return;
    if (must_recompute) recompute_part(part);
    if (is_wide() && p_.boxed_target) {
      store_box();
    } else if (is_wide()) {
      store_channels(part);
    } else {
      store_columns(part);
    }
  }

 private:
  __device__ __forceinline__ bool is_wide() const { return kWhole<Out, Bias> && p_.wide_target; }

  __device__ __forceinline__ Runs find_runs(int part) const {
    return Runs(p_, target_, window_, part, tile_.group * p_.group_targets + filter_);
  }

  // The bulk copy of a run's whole 16-byte units; each lane has that of the filter with its number.
  struct UnitCopy {
    Out* to;
    uint32_t from, bytes;
    bool whole;  // true: the run has no elements outside of them
  };

  __device__ __forceinline__ UnitCopy locate_units(const PixelRun<Out>& run) const {
    const int shift = run.misalignment(lane_);
    // In elements from the 16-byte boundary (or sector) at or before the run's first pixel.
    const int first = run.first_stored(lane_) + shift;
    const int last = run.end_stored(lane_) + shift;
    const int begin = (first + kUnit - 1) & -kUnit, end = last & -kUnit;
    return {run.to + lane_ * target_.c + begin - shift,
            shared_address(staging_ + lane_ * kPitch + run.staged + begin),
            max(0, end - begin) * static_cast<uint32_t>(sizeof(Out)),
            first == begin && last == end};
  }

  template <typename Wait>
  __device__ __forceinline__ void store_runs(int part, const Wait& wait) const {
    Runs runs = find_runs(part);
    PixelRun<Out> run = runs.next();
    UnitCopy copy = locate_units(run);
    bool whole = __all_sync(0xffffffff, copy.whole);
    const bool must_recompute = wait();
    if (filters_ <= 0) return;
    if (must_recompute) recompute_part(part);
    while (true) {
      if (run.pixels > 0) {
        copy_units(copy);
        if (!whole) store_ends(run);
      }
      if (runs.is_last()) break;
      run = runs.next();
      copy = locate_units(run);
      whole = __all_sync(0xffffffff, copy.whole);
    }
    if (elect_lane()) wait_bulk_reads();
  }

  // The elected lane issues one copy per filter. Filters whose runs are aligned alike have copies
  // of the same size at constant distances, so the loop handles one such class after the other.
  // That keeps it short: the store warp must issue copies faster than they complete.
  __device__ __forceinline__ void copy_units(const UnitCopy& copy) const {
    constexpr int kTogether = 4;
    const int apart = static_cast<int>(target_.c) & (kSector - 1);
    const int period_shift = apart == 0 ? 0 : __ffs(kSector) - __ffs(apart);
    const int64_t distance = target_.c << period_shift;
    const uint32_t from_step = (kPitch * sizeof(Out)) << period_shift;
#pragma unroll 1
    for (int phase = 0; phase < 1 << period_shift; ++phase) {
      Out* to = reinterpret_cast<Out*>(
          __shfl_sync(0xffffffff, reinterpret_cast<unsigned long long>(copy.to), phase));
      uint32_t from = __shfl_sync(0xffffffff, copy.from, phase);
      const uint32_t bytes = __shfl_sync(0xffffffff, copy.bytes, phase);
      if (bytes == 0) continue;
      if (elect_lane()) {
        int left = ((filters_ - phase - 1) >> period_shift) + 1;
#pragma unroll 1
        for (; left >= kTogether; left -= kTogether) {
#pragma unroll
          for (int i = 0; i < kTogether; ++i, to += distance, from += from_step) {
            bulk_store(to, from, bytes);
          }
        }
#pragma unroll 1
        for (; left > 0; --left, to += distance, from += from_step) bulk_store(to, from, bytes);
      }
    }
    if (elect_lane()) commit_bulk_stores();
  }

  // Stores the elements before the first and behind the last whole unit, in pairs, eight filters at
  // a time.
  __device__ __forceinline__ void store_ends(const PixelRun<Out>& run) const {
    const int shift = run.misalignment(lane_ / 4);
    const int unit_shift = shift & (kUnit - 1);
    const int begin = run.first_stored(lane_ / 4), end = run.end_stored(lane_ / 4);
    const int pair = lane_ & 3;
    const int head = 2 * pair - unit_shift;
    const int last = (end + unit_shift) & -kUnit;  // the unit behind the last whole one
    const int tail = last + 2 * pair - unit_shift;
    const bool in_first = unit_shift > 0 || end < kUnit;
    const bool has_head = pair < kUnitPairs && in_first && head >= begin && head < end;
    const bool has_tail = pair < kUnitPairs && last > 0 && tail >= begin && tail < end;
    const Out* staged = staging_ + lane_ / 4 * kPitch + run.staged + shift;
    Out* to = run.to + lane_ / 4 * target_.c;
#pragma unroll 2
    for (int filter = lane_ / 4; filter < filters_; filter += 8) {
      if (has_head) copy_pair(to + head, staged + head);
      if (has_tail) copy_pair(to + tail, staged + tail);
      to += 8 * target_.c;
      staged += 8 * kPitch;
    }
  }

  // Recomputes one staged result if necessary. pixel: index in the target's plane.
  __device__ __forceinline__ void recompute(Out& staged, int image, int pixel, int filter) const {
    if (!is_not_finite(staged)) return;
    const RecomputedSum at{tile_.group,
                           filter,
                           image,
                           pixel / p_.target_width,
                           pixel % p_.target_width,
                           tile_.chunk * p_.chunk_channels,
                           tile_.chunk_end * p_.chunk_channels,
                           false};
    staged = recompute_sum(p_, at) + (bias_ != nullptr ? to_accumulate(bias_[filter]) : 0.f);
  }

  // Recomputes the staged results that overflowed or met an infinity. Called before any copy.
  __device__ __forceinline__ void recompute_part(int part) const {
    if constexpr (kExact) {
      if (p_.even_runs) {
        recompute_runs(part);
      } else {
        recompute_columns(part);
      }
      fence_async_proxy();
      __syncwarp();
    }
  }

  __device__ __forceinline__ void recompute_runs(int part) const {
    Runs runs = find_runs(part);
#pragma unroll 1
    for (int i = 0; i < kMaxRuns; ++i) {
      const PixelRun<Out> run = runs.next();
      for (int r = 0; r < filters_; ++r) {
        Out* const staged = staging_ + r * kPitch + run.staged + run.misalignment(r);
        for (int pixel = lane_; pixel < run.pixels; pixel += 32) {
          recompute(staged[pixel], run.image, run.pixel + pixel, filter_ + r);
        }
      }
    }
  }

  __device__ __forceinline__ void recompute_columns(int part) const {
    const int column_step = is_wide() ? kChannelPitch<Out> : 1;
    const int filter_step = is_wide() ? 1 : kPitch;
    visit_columns(part, [&](int column, int image, int row, int target_column) {
      Out* const staged = staging_ + column * column_step;
      const int pixel = row * p_.target_width + target_column;
      for (int r = 0; r < filters_; ++r) {
        recompute(staged[r * filter_step], image, pixel, filter_ + r);
      }
    });
  }

  // For any target layout: each lane computes the pixel of each of its columns.
  __device__ __forceinline__ void store_columns(int part) const {
    Out* const first_plane = find_first_plane();
    visit_columns(part, [&](int column, int image, int row, int target_column) {
      Out* to = first_plane + image * target_.n + row * target_.h + target_column * target_.w;
      const Out* const staged = staging_ + column;
#pragma unroll 8
      for (int r = 0; r < filters_; ++r, to += target_.c) *to = staged[r * kPitch];
    });
  }

  // For targets with contiguous channels in whole 16-byte units: one bulk copy per pixel.
  __device__ __forceinline__ void store_channels(int part) const {
    if (elect_lane()) {
      copy_channels(part);
      commit_bulk_stores();
      wait_bulk_reads();
    }
  }

  // For windows that end with their row: one TMA store, which writes nothing beyond the row's end
  // or the last filter.
  __device__ __forceinline__ void store_box() const {
    if (elect_lane()) {
      const LinePoint at = locate_position(p_, window_);
      box_store(target_map_, tile_.group * p_.group_targets + filter_, at.column, at.row, at.image,
                shared_address(staging_));
      commit_bulk_stores();
      wait_bulk_reads();
    }
  }

  __device__ __forceinline__ void copy_channels(int part) const {
    Out* const first_plane = find_first_plane();
    const uint32_t bytes = filters_ * sizeof(Out);
    constexpr uint32_t kFromStep = kChannelPitch<Out> * sizeof(Out);
    uint32_t from = shared_address(staging_);
    LinePoint at = locate_part<kStep>(p_, window_, part);
    int left = count_columns(part);
#pragma unroll 1
    while (true) {  // one row of a strip per iteration
      const int here = min(left, p_.pitch - at.column);
      const int first = at.strip * p_.strip_columns + at.column;  // target column
      const bool is_row = at.row < p_.target_height && at.image < p_.images;
      const int of_strip = min(p_.strip_columns - at.column, p_.target_width - first);
      const int pixels = is_row ? min(here, of_strip) : 0;
      Out* to = first_plane + at.image * target_.n + at.row * target_.h + first * target_.w;
      uint32_t pixel_from = from;
#pragma unroll 1
      for (int i = 0; i < pixels; ++i) {
        bulk_store(to, pixel_from, bytes);
        to += target_.w;
        pixel_from += kFromStep;
      }
      left -= here;
      if (left == 0 || p_.pair_rows > 0) break;
      from += here * kFromStep;
      at.column = 0;
      if (++at.row < p_.rows) continue;
      at.row = 0;
      if (++at.strip < p_.strips) continue;
      at.strip = 0;
      ++at.image;
    }
  }

  __device__ __forceinline__ Out* find_first_plane() const {
    return target_.base +
           (static_cast<int64_t>(tile_.group) * p_.group_targets + filter_) * target_.c;
  }

  // Columns that the part stores. Columns shared with the next part or window are stored by that.
  __device__ __forceinline__ int count_columns(int part) const {
    const bool whole = part + 1 == kParts<Out, kColumns> && !p_.overlap;
    return whole ? kPartColumns<Out, kColumns, kPace> : kStep;
  }

  // Calls visit(column, image, row, target column) for each column of a part that is a pixel.
  template <typename Visit>
  __device__ __forceinline__ void visit_columns(int part, const Visit& visit) const {
    const LinePoint start = locate_position(p_, window_);
    const int columns = count_columns(part);
#pragma unroll 1
    for (int column = lane_; column < columns; column += 32) {
      const LinePoint point = locate_position(p_, window_ + part * kStep + column);
      // A window of a pair of rows ends with its row.
      const bool in_row =
          p_.pair_rows == 0 || (point.row == start.row && point.image == start.image);
      if (!is_target(p_, point) || !in_row) continue;
      visit(column, point.image, point.row, point.strip * p_.strip_columns + point.column);
    }
  }

  const WindowParams& p_;
  const StoreTarget<Out>& target_;
  const TilePlace& tile_;
  const int window_, filter_, filters_;
  const Bias* const bias_;
  Out* const staging_;
  const void* const target_map_;
  const int lane_;
};

}  // namespace convx
