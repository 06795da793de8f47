// From registers to shared memory.
#pragma once

#include "device/convert.cuh"
#include "device/shared_memory.cuh"
#include "engines/cuda_lines/staging.cuh"
#include "engines/half_scales.cuh"
#include "engines/tensor_types.cuh"

namespace convx {

// Where groups of 8 columns of one row are 32-byte sectors of the target, threads can store their
// sums as they are. Split sums may have to be mended, and cannot. Per column that takes the memory
// pipeline 8 cycles against 2 for staging, but no part of a window waits for the one before to be
// copied; which counts for more is to be measured anew, now that copies are the copy engine's.
inline constexpr bool kStoreSectors = true;

template <TensorMath kMath, int kColumns, typename Out>
__device__ __forceinline__ bool has_sectors(const WindowParams& p, const StoreTarget<Out>& target,
                                            int window) {
  if constexpr (!kStoreSectors || sizeof(Out) != 4 || kMath == TensorMath::kIeee) {
    return false;
  } else {
    const LinePoint start = locate_position(p, window);
    const int left = p.target_width - start.column;  // of the row
    return p.even_runs && !p.overlap && (p.pair_rows > 0 || left >= kColumns) &&
           target.c % 8 == 0 && target.n % 8 == 0 && p.target_width % 8 == 0 &&
           start.column % 8 == 0 && reinterpret_cast<size_t>(target.base) % 32 == 0;
  }
}

// Stages a warp's 16 filters by kColumns sums.
template <TensorMath kMath, int kColumns, typename Out, typename Bias>
class SumStager {
  static constexpr bool kExact = kMath == TensorMath::kIeee;
  static constexpr int kWidth = kPartColumns<Out, kColumns>;
  static constexpr int kGroups = kWidth / 8;  // of 8 columns, of which a thread has a pair
  static constexpr int kPitch = kStagingPitch<Out, kColumns>;
  using Runs = WindowRuns<Out, kColumns>;

 public:
  // filter: the warp's first, within its group. bias: of this group, or null. staging: of the
  // warpgroup.
  __device__ __forceinline__ SumStager(const WindowParams& p, const StoreTarget<Out>& target,
                                       int window, int group, int filter, const Bias* bias,
                                       Out* staging)
      : p_(p),
        target_(target),
        window_(window),
        group_(group),
        filter_(filter),
        bias_(bias),
        staging_(staging),
        first_filter_(threadIdx.x / 32 % 4 * 16),
        lane_(threadIdx.x & 31) {}

  // A part of the sums, which are as wgmma leaves them, see WgmmaSums. Returns whether some must be
  // formed anew.
  template <int kPart>
  __device__ __forceinline__ bool stage(const float (&sums)[kColumns / 2]) {
    const FilterEnd ends[2] = {load_end(filter_ + lane_ / 4), load_end(filter_ + lane_ / 4 + 8)};
    const int pair = 2 * (lane_ & 3);
    if constexpr (kWhole<Out, Bias>) {
      if (p_.wide_target) return stage_channels<kPart>(sums, ends);
    }
    if (!p_.even_runs) return stage_from<kPart>(sums, ends, pair);
    Runs runs(p_, target_, window_, kPart, group_ * p_.group_targets + filter_);
    const LinePoint& start = runs.start;
    const bool one_row = start.column + kWidth <= p_.target_width && start.row < p_.target_height;
    if (one_row) {
      return stage_from<kPart>(sums, ends, runs.misalignment(runs.next(), lane_ / 4) + pair);
    }
    return stage_rows<kPart>(sums, ends, runs, pair);
  }

  // Without staging, see has_sectors.
  __device__ __forceinline__ void store_sectors(const float (&sums)[kColumns / 2]) const {
    const LinePoint start = locate_position(p_, window_);
    if (start.row >= p_.target_height || start.image >= p_.images) return;
    const int left = p_.target_width - start.column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int filter = filter_ + lane_ / 4 + 8 * half;
      if (filter >= p_.group_targets) break;
      const FilterEnd end = load_end(filter);
      Out* const to = target_.base + start.image * target_.n +
                      (static_cast<int64_t>(group_) * p_.group_targets + filter) * target_.c +
                      start.row * p_.target_width + start.column + 2 * (lane_ & 3);
#pragma unroll
      for (int g = 0; g < kColumns / 8; ++g) {
        if (8 * g < left) {
          *reinterpret_cast<float2*>(to + 8 * g) = make_float2(
              finish(sums[4 * g + 2 * half], end), finish(sums[4 * g + 2 * half + 1], end));
        }
      }
    }
  }

 private:
  // What makes a filter's sums those of the target.
  struct FilterEnd {
    float bias = 0;
    Unscale unscale{};  // of halves
  };

  __device__ __forceinline__ FilterEnd load_end(int filter) const {
    if (filter >= p_.group_targets) return {};
    FilterEnd end;
    if (bias_ != nullptr) end.bias = to_accumulate(bias_[filter]);
    if constexpr (is_half(kMath)) {
      const HalfScales* const scales = p_.scales;
      end.unscale =
          Unscale(scales->source, filter_scales(scales)[group_ * p_.group_targets + filter]);
    }
    return end;
  }

  static __device__ __forceinline__ float finish(float sum, const FilterEnd& end) {
    if constexpr (is_half(kMath)) {
      return fmaf(sum * end.unscale.first, end.unscale.second, end.bias);
    } else {
      return kExact ? fmaf(sum, kSplitUnscale, end.bias) : sum + end.bias;
    }
  }

  // The thread's pairs of a group of 8 columns, of both its filters.
  __device__ __forceinline__ void store_pairs(const float (&sums)[kColumns / 2],
                                              const FilterEnd (&ends)[2], int group, int place,
                                              bool& spoilt) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float first = sums[4 * group + 2 * half], second = sums[4 * group + 2 * half + 1];
      if constexpr (kExact) spoilt |= is_spoilt(first) || is_spoilt(second);
      Out* const to = staging_ + (first_filter_ + lane_ / 4 + 8 * half) * kPitch + place;
      if constexpr (sizeof(Out) == 4) {
        *reinterpret_cast<float2*>(to) =
            make_float2(finish(first, ends[half]), finish(second, ends[half]));
      } else {
        *reinterpret_cast<uint32_t*>(to) =
            pack(finish(first, ends[half]), finish(second, ends[half]));
      }
    }
  }

  static __device__ __forceinline__ uint32_t pack(float first, float second) {
    union {
      uint32_t word;
      Out values[2];
    } both;
    both.values[0] = round_to<Out>(first);
    both.values[1] = round_to<Out>(second);
    return both.word;
  }

  // All columns, with the filters of each together.
  template <int kPart>
  __device__ __forceinline__ bool stage_channels(const float (&sums)[kColumns / 2],
                                                 const FilterEnd (&ends)[2]) const {
    constexpr int kChannels = kChannelPitch<Out>;
    static_assert(kWidth * kChannels <= kWindowFilters * kPitch);
    constexpr int kFirstGroup = kPart * kPartStep<Out, kColumns> / 8;
    bool spoilt = false;
    if constexpr (sizeof(Out) == 4) {
      Out* const to = staging_ + 2 * (lane_ & 3) * kChannels + first_filter_ + lane_ / 4;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // [filter][column]
          const float sum = sums[4 * (kFirstGroup + g) + i];
          if constexpr (kExact) spoilt |= is_spoilt(sum);
          to[(8 * g + i % 2) * kChannels + 8 * (i / 2)] = finish(sum, ends[i / 2]);
        }
      }
    } else {
      // Matrices of 8 filters by 8 columns: [columns][filters]. A lane gives the address of a
      // column of one of them.
      static_assert(kGroups % 2 == 0);
      const int column = lane_ / 16 * 8 + lane_ % 8;
      const uint32_t to =
          shared_address(staging_ + column * kChannels + first_filter_ + lane_ / 8 % 2 * 8);
#pragma unroll
      for (int g = 0; g < kGroups; g += 2) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int of = 4 * (kFirstGroup + g) + 2 * i;
          words[i] = pack(finish(sums[of], ends[i % 2]), finish(sums[of + 1], ends[i % 2]));
        }
        store_turned_matrices(to + 8 * g * kChannels * sizeof(Out), words);
      }
    }
    return spoilt;
  }

  // All columns side by side.
  template <int kPart>
  __device__ __forceinline__ bool stage_from(const float (&sums)[kColumns / 2],
                                             const FilterEnd (&ends)[2], int place) const {
    bool spoilt = false;
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
      store_pairs(sums, ends, kPart * kPartStep<Out, kColumns> / 8 + g, place + 8 * g, spoilt);
    return spoilt;
  }

  // Without the columns between rows.
  template <int kPart>
  __device__ __forceinline__ bool stage_rows(const float (&sums)[kColumns / 2],
                                             const FilterEnd (&ends)[2], Runs& runs,
                                             int pair) const {
    // The thread's first pair.
    int image = 0, row = runs.start.row, column = runs.start.column + pair;
    if (column >= p_.pitch) {
      column -= p_.pitch;
      ++row;
    }
    if (row == p_.rows) {
      row = 0;
      ++image;
    }
    const int gap = p_.pitch - p_.target_width;
    int place_of[kMaxRuns];  // of an image's pixel 0
#pragma unroll
    for (int i = 0; i < kMaxRuns; ++i) {
      const auto run = runs.next();
      place_of[i] = run.staged + runs.misalignment(run, lane_ / 4) - run.pixel;
    }
    // Rows that have pixels here: of this image, and of those that follow.
    const int own_rows =
        p_.pair_rows > 0 ? min(runs.start.row + 1, p_.target_height) : p_.target_height;
    const int other_rows = p_.pair_rows > 0 ? 0 : p_.target_height;

    const auto enter_image = [&](int& place, int& rows) {
      place = image == 0 ? place_of[0] : image == 1 ? place_of[1] : place_of[2];
      rows = image == 0 ? own_rows : other_rows;
    };
    int place, rows;
    enter_image(place, rows);
    place += row * p_.target_width + column;
    bool spoilt = false;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (column < p_.target_width && row < rows)
        store_pairs(sums, ends, kPart * kPartStep<Out, kColumns> / 8 + g, place, spoilt);
      const bool wraps = column + 8 >= p_.pitch;
      column += wraps ? 8 - p_.pitch : 8;
      place += wraps ? 8 - gap : 8;
      row += wraps;
      if (row == p_.rows) {  // seldom
        row = 0;
        ++image;
        enter_image(place, rows);
        place += column;
      }
    }
    return spoilt;
  }

  const WindowParams& p_;
  const StoreTarget<Out>& target_;
  const int window_, group_, filter_;
  const Bias* const bias_;
  Out* const staging_;
  const int first_filter_;  // of the warp, in the staging
  const int lane_;
};

}  // namespace convx
