// First half of the epilogue: accumulators go from registers to the staging buffer (staging.cuh).
#pragma once

#include "device/convert.cuh"
#include "device/memory.cuh"
#include "engines/cuda/lines/staging.cuh"
#include "kernels/epilogue.cuh"
#include "kernels/finish.cuh"

namespace convx {

// Stages a warp's share of a window, 16 filters by kColumns accumulators, part by part.
// start_window does everything that does not need the accumulators.
template <TensorMath kMath, int kColumns, Pace kPace, typename Out, typename Bias>
class AccumulatorStager {
  static constexpr bool kExact = kMath == TensorMath::kIeee;
  static constexpr bool kFinishAddsBias = kExact || is_half(kMath);
  static constexpr int kWidth = kPartColumns<Out, kColumns, kPace>;
  static constexpr int kGroups = kWidth / 8;  // groups of 8 columns; a thread has two of each
  static constexpr int kPitch = kStagingPitch<Out, kColumns, kPace>;
  // Elements from a thread's first to its second filter, if both are aligned alike.
  static constexpr int kHalfStep = 8 * kPitch;
  static constexpr bool kCarries = kPace == Pace::kCarry;
  template <int kPart>
  static constexpr int kFirstGroup = kPart * kPartStep<Out, kColumns, kPace> / 8;
  using Runs = WindowRuns<Out, kColumns, kPace>;

 public:
  // filter: the warpgroup's first, within its group. bias: the group's, or null. staging: the
  // warpgroup's.
  __device__ __forceinline__ AccumulatorStager(const WindowParams& p,
                                               const StoreTarget<Out>& target, int group,
                                               int filter, const Bias* bias, Out* staging)
      : p_(p),
        target_(target),
        group_(group),
        first_filter_(threadIdx.x / 32 % 4 * 16),
        filter_(filter + first_filter_),
        bias_(bias),
        staging_(staging),
        lane_(threadIdx.x & 31),
        finish_{load_finish(filter_ + lane_ / 4), load_finish(filter_ + lane_ / 4 + 8)} {}

  __device__ __forceinline__ void start_window(int window) {
    window_ = window;
    start_ = find_start(0);
  }

  // Adds the bias to all accumulators and bounds them. Formats that scale their results do it in
  // finish instead.
  __device__ __forceinline__ void finish_early(float (&sums)[kColumns / 2]) const {
    if constexpr (!kFinishAddsBias) {
      if (bias_ != nullptr) {
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) sums[i] += finish_[i / 2 % 2].bias;
      }
      if (p_.lowest == 0) all_at_least(sums, p_.lowest);
    }
  }

  // Calls visit once for each part, in order. Inside it, stage handles that part.
  template <typename Visit>
  __device__ __forceinline__ void visit_parts(const Visit& visit) {
    visit.template operator()<0>();
    if constexpr (kParts<Out, kColumns> == 2) {
      start_ = find_start(1);
      visit.template operator()<1>();
    }
  }

  // For Pace::kCarry. load_rest reads the incomplete last piece that the previous tile left in each
  // of the warp's 16 staged filters. store_rest writes it to the start of the staged filter, in
  // front of the new run; call it after the store warp has released the staging buffer. If the
  // previous tile left nothing, the bytes are not used.
  static constexpr int kPieceLanes = kCarriedBytes / 16;
  static constexpr int kRestRounds = 16 * kPieceLanes / 32;
  struct Rest {
    uint32_t words[kRestRounds][4];
  };
  // before: bytes per filter of the previous tile's first run.
  __device__ __forceinline__ Rest load_rest(int before) const {
    __syncwarp();  // other lanes have written these values
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
    __syncwarp();  // other lanes write accumulators behind them
  }

  // The pixels that the part has of its first image.
  __device__ __forceinline__ const PixelRun<Out>& run() const { return start_.run; }

  // Stages part kPart of the accumulators, which have the layout of WgmmaSums. Returns true if some
  // of them must be recomputed.
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
  __device__ __forceinline__ Finish<kMath> load_finish(int filter) const {
    if (filter >= p_.group_targets) return {};
    const float bias = bias_ != nullptr ? to_accumulate(bias_[filter]) : 0.f;
    if constexpr (is_half(kMath)) {
      const HalfScales* const scales = p_.scales;
      return {bias, scales->source, filter_scales(scales)[group_ * p_.group_targets + filter]};
    } else {
      return {bias, 1, 1};
    }
  }

  // How the rows of the line cut a part: not at all, by one end of a row with nothing else to leave
  // out, or in any other way.
  enum class RowCut { kNone, kOne, kAny };
  struct PartStart {
    int row, column;
    int place;      // in a staged filter, of the thread's first pair of columns
    int half_step;  // elements from there to the same pair of the thread's second filter
    RowCut cut;
    PixelRun<Out> run;
  };

  __device__ __forceinline__ PartStart find_start(int part) const {
    const int pair = 2 * (lane_ & 3);
    if (!kCarries && !p_.even_runs) return {0, 0, pair, kHalfStep, RowCut::kNone, {}};
    Runs runs = find_runs(part);
    const PixelRun<Out> run = runs.next();
    const auto& [image, strip, row, column] = runs.start;
    // If the part starts in the gap behind a row, place counts the gap's columns too, although they
    // are no pixels: the staging functions subtract the whole gap when they enter the next row.
    const int shift = run.misalignment(lane_ / 4);
    const int place = shift + max(0, column - p_.target_width);
    const int half_step =
        kCarries ? kHalfStep + run.misalignment(lane_ / 4 + 8) - shift : kHalfStep;
    const int end = column + kWidth;
    const bool one_row = end <= p_.target_width && row < p_.target_height;
    // A window of a pair of rows ends with its row: everything behind the row's end is left out.
    const bool two_rows =
        p_.pair_rows > 0 || (end <= p_.pitch + p_.target_width && row + 1 < p_.target_height);
    const RowCut cut = one_row ? RowCut::kNone : two_rows ? RowCut::kOne : RowCut::kAny;
    return {row, column, place + pair, half_step, cut, run};
  }

  __device__ __forceinline__ Runs find_runs(int part) const {
    return Runs(p_, target_, window_, part, group_ * p_.group_targets + filter_);
  }

  // half: 0 or 1, the thread's first or second filter.
  __device__ __forceinline__ float finish(float sum, int half) const {
    if constexpr (!kFinishAddsBias) return sum;
    const float finished = finish_[half](sum);
    // Strict float32 recomputes sums that overflowed, and has its activations in a pass of its own.
    return kExact ? finished : at_least(finished, p_.lowest);
  }

  // The lane's filter, within the warp's 16, and its 16 bytes of the piece in a round of load_rest
  // or store_rest.
  __device__ __forceinline__ int rest_filter(int round) const {
    return round * (32 / kPieceLanes) + lane_ / kPieceLanes;
  }
  __device__ __forceinline__ uint32_t locate_rest(int round) const {
    return shared_address(staging_ + (first_filter_ + rest_filter(round)) * kPitch) +
           lane_ % kPieceLanes * 16;
  }

  // The address of a place in the thread's first staged filter.
  __device__ __forceinline__ Out* find_address(int place) const {
    return staging_ + (first_filter_ + lane_ / 4) * kPitch + place;
  }

  // Stores the thread's two columns of a group of 8, for both of its filters. address: for the
  // first filter. half_step: from there to the second.
  __device__ __forceinline__ void store_pairs(const float (&sums)[kColumns / 2], int group,
                                              Out* address, int half_step,
                                              bool& must_recompute) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float first = sums[4 * group + 2 * half], second = sums[4 * group + 2 * half + 1];
      if constexpr (kExact) must_recompute |= is_not_finite(first) || is_not_finite(second);
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

  // Stages all columns as [column][filter], for targets with contiguous channels.
  template <int kPart>
  __device__ __forceinline__ bool stage_channels(const float (&sums)[kColumns / 2]) const {
    constexpr int kChannels = kChannelPitch<Out>;
    static_assert(kWidth * kChannels <= kWindowFilters * kPitch);
    bool must_recompute = false;
    if constexpr (sizeof(Out) == 4) {
      Out* const to = staging_ + 2 * (lane_ & 3) * kChannels + first_filter_ + lane_ / 4;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // accumulators are [filter][column]
          const float sum = sums[4 * (kFirstGroup<kPart> + g) + i];
          if constexpr (kExact) must_recompute |= is_not_finite(sum);
          to[(8 * g + i % 2) * kChannels + 8 * (i / 2)] = finish(sum, i / 2);
        }
      }
    } else {
      // stmatrix transposes 8 filters x 8 columns to [column][filter]. Each lane passes the address
      // of one column of one of the four matrices.
      static_assert(kGroups % 2 == 0);
      const int column = lane_ / 16 * 8 + lane_ % 8;
      const int filter_unit = first_filter_ / 8 + lane_ / 8 % 2;
      // A buffer that TMA stores is swizzled instead of padded. Streaming blocks have none.
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
        store_transposed_matrices(to + 8 * g * pitch, words);
      }
    }
    return must_recompute;
  }

  // Stages all columns: the part lies within one row.
  template <int kPart>
  __device__ __forceinline__ bool stage_row(const float (&sums)[kColumns / 2]) const {
    Out* const to = find_address(start_.place);
    bool must_recompute = false;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      store_pairs(sums, kFirstGroup<kPart> + g, to + 8 * g, start_.half_step, must_recompute);
    }
    return must_recompute;
  }

  // Stages the columns before the end of a row and those of the next row, without the gap.
  template <int kPart>
  __device__ __forceinline__ bool stage_two_rows(const float (&sums)[kColumns / 2]) const {
    const int column = start_.column + 2 * (lane_ & 3);
    // Groups of 8 before the row's end, or 0 if the row has no pixels; first group of the next row.
    const int row_groups = start_.row < p_.target_height ? (p_.target_width - column + 7) >> 3 : 0;
    const int next_group = p_.pair_rows > 0 ? kGroups : (p_.pitch - column + 7) >> 3;
    Out* const to = find_address(start_.place);
    Out* const next_to = to - (p_.pitch - p_.target_width);
    bool must_recompute = false;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int group = kFirstGroup<kPart> + g;
      const int step = start_.half_step;
      if (g < row_groups) store_pairs(sums, group, to + 8 * g, step, must_recompute);
      if (g >= next_group) store_pairs(sums, group, next_to + 8 * g, step, must_recompute);
    }
    return must_recompute;
  }

  // Stages any part, without the gaps between rows and images.
  template <int kPart>
  __device__ __forceinline__ bool stage_rows(const float (&sums)[kColumns / 2]) const {
    Out* next_image[kMaxRuns - 1] = {};  // where pixel 0 of each following image is staged
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
        p_.target_width - start_.column - 2 * (lane_ & 3);  // pixels that are left in the row
    Out* to = find_address(start_.place);
    int half_step = start_.half_step;
    const auto enter_row = [&] {
      left += p_.pitch, to -= gap, ++row;
      if (row == p_.rows) {  // rare
        row = 0;
        to = next_image[0] + p_.target_width - left;
        next_image[0] = next_image[1];
        half_step = kHalfStep;
      }
    };
    if (left <= -gap) enter_row();
    bool must_recompute = false;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (left > 0 && row < p_.target_height) {
        store_pairs(sums, kFirstGroup<kPart> + g, to, half_step, must_recompute);
      }
      left -= 8, to += 8;
      if (left <= -gap) enter_row();
    }
    return must_recompute;
  }

  const WindowParams& p_;
  const StoreTarget<Out>& target_;
  const int group_;
  const int first_filter_;  // the warp's first filter within the warpgroup's 64
  const int filter_;        // the same within the group
  const Bias* const bias_;
  Out* const staging_;
  const int lane_;
  const Finish<kMath> finish_[2];  // of the thread's two filters
  int window_ = 0;                 // first position of the window
  PartStart start_{};              // start of the current part
};

}  // namespace convx
