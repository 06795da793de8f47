// From registers to shared memory.
#pragma once

#include "device/convert.cuh"
#include "device/shared_memory.cuh"
#include "engines/cuda_lines/staging.cuh"
#include "engines/half_scales.cuh"
#include "engines/tensor_types.cuh"

namespace convx {

// Stages a warp's 16 filters by kColumns sums, part by part. What can be found out before there are
// sums, start_window does.
template <TensorMath kMath, int kColumns, Pace kPace, typename Out, typename Bias>
class SumStager {
  static constexpr bool kExact = kMath == TensorMath::kIeee;
  static constexpr bool kFinishAddsBias = kExact || is_half(kMath);
  static constexpr int kWidth = kPartColumns<Out, kColumns, kPace>;
  static constexpr int kGroups = kWidth / 8;  // of 8 columns, of which a thread has a pair
  static constexpr int kPitch = kStagingPitch<Out, kColumns, kPace>;
  static constexpr int kHalfStep = 8 * kPitch;  // where filters are aligned alike
  static constexpr bool kCarries = kPace == Pace::kCarry;
  template <int kPart>
  static constexpr int kFirstGroup = kPart * kPartStep<Out, kColumns, kPace> / 8;
  using Runs = WindowRuns<Out, kColumns, kPace>;

 public:
  // filter: the warpgroup's first, within its group. bias: of this group, or null. staging: of the
  // warpgroup.
  __device__ __forceinline__ SumStager(const WindowParams& p, const StoreTarget<Out>& target,
                                       int group, int filter, const Bias* bias, Out* staging)
      : p_(p),
        target_(target),
        group_(group),
        first_filter_(threadIdx.x / 32 % 4 * 16),
        filter_(filter + first_filter_),
        bias_(bias),
        staging_(staging),
        lane_(threadIdx.x & 31),
        ends_{load_end(filter_ + lane_ / 4), load_end(filter_ + lane_ / 4 + 8)} {}

  __device__ __forceinline__ void start_window(int window) {
    window_ = window;
    start_ = find_start(0);
  }

  // To all sums, once they are there; in other kinds of products it is part of finishing each.
  __device__ __forceinline__ void add_bias(float (&sums)[kColumns / 2]) const {
    if constexpr (!kFinishAddsBias) {
      if (bias_ == nullptr) return;
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) sums[i] += ends_[i / 2 % 2].bias;
    }
  }

  // Calls visit with each part, one after the other: stage is for the part that is visited.
  template <typename Visit>
  __device__ __forceinline__ void visit_parts(const Visit& visit) {
    visit.template operator()<0>();
    if constexpr (kParts<Out, kColumns> == 2) {
      start_ = find_start(1);
      visit.template operator()<1>();
    }
  }

  // In blocks that carry: the pieces that the part before has left, of the warp's filters, and
  // where they go, once what lies there has been stored. Where nothing was left, nobody reads them.
  static constexpr int kPieceLanes = kCarriedBytes / 16;
  static constexpr int kRestRounds = 16 * kPieceLanes / 32;
  struct Rest {
    uint32_t words[kRestRounds][4];
  };
  // before: bytes of its first run.
  __device__ __forceinline__ Rest load_rest(int before) const {
    __syncwarp();  // they are other lanes' sums
    Rest rest;
#pragma unroll
    for (int i = 0; i < kRestRounds; ++i) {
      const int here = start_.run.misalignment(rest_filter(i)) * static_cast<int>(sizeof(Out));
      const int stored = before + ((here - before) & (kCarriedBytes - 1)) - here;
      load_16_bytes(locate_rest(i) + stored, rest.words[i]);
    }
    return rest;
  }
  __device__ __forceinline__ void store_rest(const Rest& rest) const {
#pragma unroll
    for (int i = 0; i < kRestRounds; ++i) store_16_bytes(locate_rest(i), rest.words[i]);
    __syncwarp();  // sums go behind them
  }

  // What the part has of its first image.
  __device__ __forceinline__ const PixelRun<Out>& run() const { return start_.run; }

  // A part of the sums, which are as wgmma leaves them, see WgmmaSums. Returns whether some must be
  // formed anew.
  template <int kPart>
  __device__ __forceinline__ bool stage(const float (&sums)[kColumns / 2]) {
    if constexpr (kWhole<Out, Bias> && !kCarries) {
      if (p_.wide_target) return stage_channels<kPart>(sums);
    }
    const RowCut cut = start_.cut;
    return cut == RowCut::kNone  ? stage_row<kPart>(sums)
           : cut == RowCut::kOne ? stage_two_rows<kPart>(sums)
                                 : stage_rows<kPart>(sums);
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

  // How a part of the window lies in rows: within one, with one end of a row in it and nothing else
  // to leave out, or in any way.
  enum class RowCut { kNone, kOne, kAny };
  struct PartStart {
    int row, column;
    int place;      // in a staged filter, where the thread's first pair is staged
    int half_step;  // from there to the thread's second filter's
    RowCut cut;
    PixelRun<Out> run;
  };

  __device__ __forceinline__ PartStart find_start(int part) const {
    const int pair = 2 * (lane_ & 3);
    if (!kCarries && !p_.even_runs) return {0, 0, pair, kHalfStep, RowCut::kNone, {}};
    Runs runs = find_runs(part);
    const PixelRun<Out> run = runs.next();
    const auto& [image, strip, row, column] = runs.start;
    // Positions between rows are counted, though they are not pixels.
    const int shift = run.misalignment(lane_ / 4);
    const int place = shift + max(0, column - p_.target_width);
    const int half_step =
        kCarries ? kHalfStep + run.misalignment(lane_ / 4 + 8) - shift : kHalfStep;
    const int end = column + kWidth;
    const bool one_row = end <= p_.target_width && row < p_.target_height;
    // Of a pair of rows' window, all that comes behind the end is left out.
    const bool two_rows =
        p_.pair_rows > 0 || (end <= p_.pitch + p_.target_width && row + 1 < p_.target_height);
    const RowCut cut = one_row ? RowCut::kNone : two_rows ? RowCut::kOne : RowCut::kAny;
    return {row, column, place + pair, half_step, cut, run};
  }

  __device__ __forceinline__ Runs find_runs(int part) const {
    return Runs(p_, target_, window_, part, group_ * p_.group_targets + filter_);
  }

  // half: which of the thread's two filters.
  __device__ __forceinline__ float finish(float sum, int half) const {
    const FilterEnd& end = ends_[half];
    if constexpr (is_half(kMath)) {
      return fmaf(sum * end.unscale.first, end.unscale.second, end.bias);
    } else {
      return kExact ? fmaf(sum, kSplitUnscale, end.bias) : sum;
    }
  }

  // In a round of moving rests: the lane's filter, of the warp's, and its part of a piece.
  __device__ __forceinline__ int rest_filter(int round) const {
    return round * (32 / kPieceLanes) + lane_ / kPieceLanes;
  }
  __device__ __forceinline__ uint32_t locate_rest(int round) const {
    return shared_address(staging_ + (first_filter_ + rest_filter(round)) * kPitch) +
           lane_ % kPieceLanes * 16;
  }

  // Where the thread's first filter has a place.
  __device__ __forceinline__ Out* find_address(int place) const {
    return staging_ + (first_filter_ + lane_ / 4) * kPitch + place;
  }

  // The thread's pairs of a group of 8 columns, of both its filters. address: of the first;
  // half_step: from there to the second's.
  __device__ __forceinline__ void store_pairs(const float (&sums)[kColumns / 2], int group,
                                              Out* address, int half_step, bool& spoilt) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float first = sums[4 * group + 2 * half], second = sums[4 * group + 2 * half + 1];
      if constexpr (kExact) spoilt |= is_spoilt(first) || is_spoilt(second);
      Out* const to = address + half * half_step;
      if constexpr (sizeof(Out) == 4) {
        *reinterpret_cast<float2*>(to) = make_float2(finish(first, half), finish(second, half));
      } else {
        *reinterpret_cast<uint32_t*>(to) = pack(finish(first, half), finish(second, half));
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
  __device__ __forceinline__ bool stage_channels(const float (&sums)[kColumns / 2]) const {
    constexpr int kChannels = kChannelPitch<Out>;
    static_assert(kWidth * kChannels <= kWindowFilters * kPitch);
    bool spoilt = false;
    if constexpr (sizeof(Out) == 4) {
      Out* const to = staging_ + 2 * (lane_ & 3) * kChannels + first_filter_ + lane_ / 4;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // [filter][column]
          const float sum = sums[4 * (kFirstGroup<kPart> + g) + i];
          if constexpr (kExact) spoilt |= is_spoilt(sum);
          to[(8 * g + i % 2) * kChannels + 8 * (i / 2)] = finish(sum, i / 2);
        }
      }
    } else {
      // Matrices of 8 filters by 8 columns: [columns][filters]. A lane gives the address of a
      // column of one of them.
      static_assert(kGroups % 2 == 0);
      const int column = lane_ / 16 * 8 + lane_ % 8;
      const int filter_unit = first_filter_ / 8 + lane_ / 8 % 2;
      // Boxes are swizzled instead; blocks that walk have none.
      const bool boxed = kPace == Pace::kTiles && p_.boxed_target;
      const int pitch = boxed ? kBoxedFilterBytes : kChannels * static_cast<int>(sizeof(Out));
      const int swizzled = boxed ? filter_unit ^ lane_ % 8 : filter_unit;
      const uint32_t to = shared_address(staging_) + column * pitch + 16 * swizzled;
#pragma unroll
      for (int g = 0; g < kGroups; g += 2) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int of = 4 * (kFirstGroup<kPart> + g) + 2 * i;
          words[i] = pack(finish(sums[of], i % 2), finish(sums[of + 1], i % 2));
        }
        store_turned_matrices(to + 8 * g * pitch, words);
      }
    }
    return spoilt;
  }

  // All columns side by side.
  template <int kPart>
  __device__ __forceinline__ bool stage_row(const float (&sums)[kColumns / 2]) const {
    Out* const to = find_address(start_.place);
    bool spoilt = false;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      store_pairs(sums, kFirstGroup<kPart> + g, to + 8 * g, start_.half_step, spoilt);
    }
    return spoilt;
  }

  // Without what lies behind the row's end, up to the next row.
  template <int kPart>
  __device__ __forceinline__ bool stage_two_rows(const float (&sums)[kColumns / 2]) const {
    const int column = start_.column + 2 * (lane_ & 3);
    // Groups before the end, if the row has pixels at all; and the first of the next row.
    const int row_groups = start_.row < p_.target_height ? (p_.target_width - column + 7) >> 3 : 0;
    const int next_group = p_.pair_rows > 0 ? kGroups : (p_.pitch - column + 7) >> 3;
    Out* const to = find_address(start_.place);
    Out* const next_to = to - (p_.pitch - p_.target_width);
    bool spoilt = false;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int group = kFirstGroup<kPart> + g;
      const int step = start_.half_step;
      if (g < row_groups) store_pairs(sums, group, to + 8 * g, step, spoilt);
      if (g >= next_group) store_pairs(sums, group, next_to + 8 * g, step, spoilt);
    }
    return spoilt;
  }

  // Without the columns between rows.
  template <int kPart>
  __device__ __forceinline__ bool stage_rows(const float (&sums)[kColumns / 2]) const {
    Out* next_image[kMaxRuns - 1] = {};  // pixel 0 of the images that follow
    if (start_.row * p_.pitch + start_.column + kWidth > p_.rows * p_.pitch) {
      Runs runs = find_runs(kPart);
      runs.next();
#pragma unroll
      for (Out*& address : next_image) {
        const auto run = runs.next();
        address = find_address(run.staged + run.misalignment(lane_ / 4));
      }
    }
    const int gap = p_.pitch - p_.target_width;
    int row = start_.row;
    int left =
        p_.target_width - start_.column - 2 * (lane_ & 3);  // pixels of the row, from here on
    Out* to = find_address(start_.place);
    int half_step = start_.half_step;
    const auto enter_row = [&] {
      left += p_.pitch, to -= gap, ++row;
      if (row == p_.rows) {  // seldom
        row = 0;
        to = next_image[0] + p_.target_width - left;
        next_image[0] = next_image[1];
        half_step = kHalfStep;
      }
    };
    if (left <= -gap) enter_row();
    bool spoilt = false;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (left > 0 && row < p_.target_height) {
        store_pairs(sums, kFirstGroup<kPart> + g, to, half_step, spoilt);
      }
      left -= 8, to += 8;
      if (left <= -gap) enter_row();
    }
    return spoilt;
  }

  const WindowParams& p_;
  const StoreTarget<Out>& target_;
  const int group_;
  const int first_filter_;  // of the warp, in the staging
  const int filter_;        // and in the group
  const Bias* const bias_;
  Out* const staging_;
  const int lane_;
  const FilterEnd ends_[2];  // of the thread's filters
  int window_ = 0;           // its first position
  PartStart start_{};        // of the part
};

}  // namespace convx
