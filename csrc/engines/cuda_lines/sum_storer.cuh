// From shared memory to the target.
#pragma once

#include "device/convert.cuh"
#include "engines/cuda_lines/staging.cuh"
#include "engines/tensor_types.cuh"

namespace convx {

// Stores what a warpgroup has staged, by one warp.
template <TensorMath kMath, int kColumns, typename Out, typename Bias>
class SumStorer {
  static constexpr bool kExact = kMath == TensorMath::kIeee;
  static constexpr int kPitch = kStagingPitch<Out, kColumns>;
  static constexpr int kUnit = kStoreUnit<Out>;
  static constexpr int kUnitPairs = kUnit / 2;
  static constexpr int kSector = 32 / static_cast<int>(sizeof(Out));
  static constexpr int kBatch = 8;  // filters at a time
  static constexpr int kStep = kPartStep<Out, kColumns>;
  using Runs = WindowRuns<Out, kColumns>;

 public:
  // filter: the warpgroup's first, within its group; filters: how many there are. bias: of the
  // group, or null.
  __device__ __forceinline__ SumStorer(const WindowParams& p, const StoreTarget<Out>& target,
                                       const TilePlace& tile, int window, int filter,
                                       const Bias* bias, Out* staging)
      : p_(p),
        target_(target),
        tile_(tile),
        window_(window),
        filter_(filter),
        filters_(min(kWindowFilters, p.group_targets - filter)),
        bias_(bias),
        staging_(staging),
        lane_(threadIdx.x & 31) {}

  // A part of the window. spoilt: some sums must be formed anew.
  __device__ __forceinline__ void store(int part, bool spoilt) {
    if (filters_ <= 0) return;
    if (!p_.even_runs) return store_columns(part, spoilt);
    const Runs runs(p_, target_, window_, part, tile_.group * p_.group_targets + filter_);
#pragma unroll 1
    for (int i = 0; i < kMaxRuns; ++i) {
      const PixelRun<Out> run = i == 0 ? runs.runs[0] : i == 1 ? runs.runs[1] : runs.runs[2];
      if (run.pixels == 0) continue;
      if constexpr (kExact) {
        if (spoilt) mend_run(runs, run);
      }
      store_units(runs, run);
      store_ends(runs, run);
    }
  }

 private:
  // Whole units: a lane has the same of each filter it stores; short runs leave lanes for several
  // filters at once. Filters whose runs are aligned alike follow each other, so that little is left
  // to find out for each.
  __device__ __forceinline__ void store_units(const Runs& runs, const PixelRun<Out>& run) const {
    const int apart = static_cast<int>(target_.c) & (kSector - 1);
    const int period = apart == 0 ? 1 : kSector / (apart & -apart);
    const int units = (run.pixels + 2 * kUnit - 1) / kUnit;
    const int width = units > 16 ? 32 : units > 8 ? 16 : 8;  // lanes of a filter
    const int step = period * (32 / width);                  // filters
    const int64_t distance = step * target_.c;
#pragma unroll 1
    for (int phase = 0; phase < min(period, filters_); ++phase) {
      const int shift = runs.misalignment(run, phase);
      const int begin = runs.first_stored(run, phase), end = runs.end_stored(run, phase);
      const int filter = phase + lane_ / width * period;  // this lane's first
#pragma unroll 1
      for (int first = (lane_ & (width - 1)) * kUnit - shift; first + kUnit <= end;
           first += width * kUnit) {
        if (first < begin) continue;
        const Out* from = staging_ + filter * kPitch + run.staged + shift + first;
        Out* to = run.to + filter * target_.c + first;
        int left = (filters_ - filter + step - 1) / step;
#pragma unroll 1
        for (; left >= kBatch; left -= kBatch) {
          uint4 values[kBatch];
#pragma unroll
          for (int i = 0; i < kBatch; ++i, from += step * kPitch) {
            values[i] = *reinterpret_cast<const uint4*>(from);
          }
#pragma unroll
          for (int i = 0; i < kBatch; ++i, to += distance) {
            *reinterpret_cast<uint4*>(to) = values[i];
          }
        }
        for (; left > 0; --left, from += step * kPitch, to += distance) {
          *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
        }
      }
    }
  }

  // What is left of the first unit and of the last, pair by pair, eight filters at once.
  __device__ __forceinline__ void store_ends(const Runs& runs, const PixelRun<Out>& run) const {
    const int shift = runs.misalignment(run, lane_ / 4);
    const int begin = runs.first_stored(run, lane_ / 4), end = runs.end_stored(run, lane_ / 4);
    const int pair = lane_ & 3;
    const int head = 2 * pair - shift;
    const int last = (end + shift) & -kUnit;  // the unit behind the last whole one
    const int tail = last + 2 * pair - shift;
    const bool in_first = shift > 0 || end < kUnit;
    const bool has_head = pair < kUnitPairs && in_first && head >= begin && head < end;
    const bool has_tail = pair < kUnitPairs && last > 0 && tail >= begin && tail < end;
    if (!__any_sync(0xffffffff, has_head || has_tail)) return;
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

  static __device__ __forceinline__ void copy_pair(Out* to, const Out* from) {
    if constexpr (sizeof(Out) == 4) {
      *reinterpret_cast<float2*>(to) = *reinterpret_cast<const float2*>(from);
    } else {
      *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(from);
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
                       false};
    staged = mend_sum(p_, at) + (bias_ != nullptr ? to_accumulate(bias_[filter]) : 0.f);
  }

  __device__ __forceinline__ void mend_run(const Runs& runs, const PixelRun<Out>& run) {
    for (int r = 0; r < filters_; ++r) {
      Out* const staged = staging_ + r * kPitch + run.staged + runs.misalignment(run, r);
      for (int i = lane_; i < run.pixels; i += 32) {
        mend(staged[i], run.image, run.pixel + i, filter_ + r);
      }
    }
    __syncwarp();
  }

  // Any layout: each lane looks up the pixels of its columns.
  __device__ __forceinline__ void store_columns(int part, bool spoilt) {
    Out* const first_plane =
        target_.base + (static_cast<int64_t>(tile_.group) * p_.group_targets + filter_) * target_.c;
    const LinePoint start = locate_position(p_, window_);
    // The next part, or window, has the columns that both share.
    const bool whole = part + 1 == kParts<Out> && !p_.overlap;
    const int columns = whole ? kPartColumns<Out, kColumns> : kStep;
#pragma unroll 1
    for (int column = lane_; column < columns; column += 32) {
      const LinePoint point = locate_position(p_, window_ + part * kStep + column);
      // A window of a pair of rows ends with its row.
      const bool in_row =
          p_.pair_rows == 0 || (point.row == start.row && point.image == start.image);
      if (!is_target(p_, point) || !in_row) continue;
      const int target_column = point.strip * p_.strip_columns + point.column;
      Out* to =
          first_plane + point.image * target_.n + point.row * target_.h + target_column * target_.w;
      Out* const staged = staging_ + column;
      if constexpr (kExact) {
        if (spoilt) {
          const int pixel = point.row * p_.target_width + target_column;
          for (int r = 0; r < filters_; ++r) {
            mend(staged[r * kPitch], point.image, pixel, filter_ + r);
          }
        }
      }
      if (p_.wide_target) {
        store_channels(to, staged);
      } else {
#pragma unroll 8
        for (int r = 0; r < filters_; ++r, to += target_.c) *to = staged[r * kPitch];
      }
    }
  }

  // Channels of a pixel lie together.
  __device__ __forceinline__ void store_channels(Out* to, const Out* staged) const {
#pragma unroll 2
    for (int r = 0; r < filters_; r += kUnit) {
      union {
        uint4 unit;
        Out values[kUnit];
      } channels;
#pragma unroll
      for (int i = 0; i < kUnit; ++i) channels.values[i] = staged[(r + i) * kPitch];
      *reinterpret_cast<uint4*>(to + r) = channels.unit;
    }
  }

  const WindowParams& p_;
  const StoreTarget<Out>& target_;
  const TilePlace& tile_;
  const int window_, filter_, filters_;
  const Bias* const bias_;
  Out* const staging_;
  const int lane_;
};

}  // namespace convx
