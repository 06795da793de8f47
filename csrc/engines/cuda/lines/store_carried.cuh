// Second half of the epilogue for Pace::kCarry (staging.cuh): results go from the staging buffer to
// the target in whole pieces of kCarriedBytes.
#pragma once

#include "device/async_copy.cuh"
#include "device/memory.cuh"
#include "device/warp_roles.cuh"
#include "engines/cuda/lines/staging.cuh"

namespace convx {

// Stores the results that one warpgroup has staged. Called by one warp: its elected lane issues one
// bulk copy per filter, of all whole pieces. All lanes store the incomplete pieces at the beginning
// and the end of an image, or of the block's section of it.
template <int kColumns, typename Out>
class CarriedStorer {
  static constexpr uint32_t kElement = sizeof(Out);
  static constexpr int kPitch = kStagingPitch<Out, kColumns, Pace::kCarry>;
  static constexpr uint32_t kPitchBytes = kPitch * kElement;
  static constexpr uint32_t kPiece = kCarriedBytes;
  static constexpr uint64_t kLongPiece = kCarriedBytes;
  static constexpr uint32_t kPair = 2 * kElement;
  static_assert(kPiece <= 32 * kPair);
  using Runs = WindowRuns<Out, kColumns, Pace::kCarry>;

 public:
  // filter: the warpgroup's first.
  __device__ __forceinline__ CarriedStorer(const WindowParams& p, const StoreTarget<Out>& target,
                                           int filter, const Out* staging)
      : p_(p),
        target_(target),
        filter_(filter),
        filters_(min(kWindowFilters, p.group_targets - filter)),
        staging_(staging),
        lane_(threadIdx.x & 31) {}

  // Stores a window. more: the block has further windows. wait: returns once the window is staged.
  // When store returns to the elected lane (elect_lane), the staging buffer has been read.
  template <typename Wait>
  __device__ __forceinline__ void store(int window, bool more, const Wait& wait) {
    Runs runs(p_, target_, window, 0, filter_);
    const PixelRun<Out> run = runs.next();
    const uint32_t bytes = run.bytes();
    const bool begins = !carried_;
    // If nothing is carried yet, a run shorter than a piece may have no whole piece in some filter,
    // and cannot wait for the next window.
    const bool ends_image = run.pixel + run.pixels >= p_.target_height * p_.target_width;
    carried_ = more && !ends_image && (carried_ || bytes >= kPiece);
    wait();
    if (begins) {
      store_pieces<true>(run, bytes);
      // The first piece, if the run starts inside it: [shift, end of the piece).
      store_pairs(run, [&](uint32_t shift) {
        return Range{shift, shift == 0 ? 0 : min(kPiece, shift + bytes)};
      });
    } else {
      store_pieces<false>(run, bytes);
    }
    if (!carried_) {
      store_pairs(run, [&](uint32_t shift) {
        const uint32_t end = shift + bytes;
        return Range{max(end & -kPiece, begins ? shift : 0), end};
      });
    }
    if (!runs.is_last()) store_next_image(runs.next());
    if (elect_lane()) wait_bulk_reads();
  }

 private:
  struct Range {
    uint32_t begin, end;  // bytes from the start of a staged filter
  };

  // Stores the whole pieces of all filters. kBegins: nothing was carried, so the first piece is
  // left out if the run starts inside it.
  template <bool kBegins>
  __device__ __forceinline__ void store_pieces(const PixelRun<Out>& run, uint32_t bytes) const {
    if (!elect_lane()) return;
    if (kBegins || bytes < kPiece) {
      start_copies(run, [&](uint64_t to, uint32_t from) {
        const uint32_t shift = to & (kPiece - 1), end = (shift + bytes) & -kPiece;
        const uint32_t begin = kBegins && shift > 0 ? kPiece : 0;
        if (begin < end) copy(to - shift + begin, from + begin, end - begin);
      });
    } else if (bytes % kPiece == 0) {
      start_copies(run, [&](uint64_t to, uint32_t from) { copy(to & -kLongPiece, from, bytes); });
    } else {
      start_copies(run, [&](uint64_t to, uint32_t from) {
        const uint32_t shift = to & (kPiece - 1);
        copy(to & -kLongPiece, from, (shift + bytes) & -kPiece);
      });
    }
    commit_bulk_stores();
  }

  // Calls start(address of the run in the target, staged address) for each filter.
  template <typename Start>
  __device__ __forceinline__ void start_copies(const PixelRun<Out>& run, const Start& start) const {
    uint64_t to = reinterpret_cast<uint64_t>(run.to);
    const uint64_t distance = target_.c * kElement;
    uint32_t from = shared_address(staging_);
#pragma unroll 4
    for (int filter = 0; filter < filters_; ++filter, to += distance, from += kPitchBytes) {
      start(to, from);
    }
  }

  static __device__ __forceinline__ void copy(uint64_t to, uint32_t from, uint32_t bytes) {
    bulk_store(reinterpret_cast<void*>(to), from, bytes);
  }

  // Stores find(shift), a range of less than a piece, of each filter. shift: bytes from the start
  // of the staged filter to its run.
  template <typename Find>
  __device__ __forceinline__ void store_pairs(const PixelRun<Out>& run, const Find& find) const {
#pragma unroll 2
    for (int filter = 0; filter < filters_; ++filter) {
      const uint32_t shift = run.misalignment(filter) * kElement;
      const Range range = find(shift);
      const uint32_t at = (range.begin & -kPiece) + lane_ * kPair;
      if (at >= range.begin && at < range.end) {
        const int element = static_cast<int>(at / kElement);
        copy_pair(run.to + filter * target_.c + element - static_cast<int>(shift / kElement),
                  staging_ + filter * kPitch + element);
      }
    }
  }

  __device__ __forceinline__ void store_next_image(const PixelRun<Out>& run) const {
    Out* to = run.to;
    const Out* staged = staging_ + run.staged;
    for (int filter = 0; filter < filters_; ++filter, to += target_.c, staged += kPitch) {
      const int shift = run.misalignment(filter);
      for (int i = 2 * lane_; i < run.pixels; i += 64) copy_pair(to + i, staged + shift + i);
    }
  }

  const WindowParams& p_;
  const StoreTarget<Out>& target_;
  const int filter_, filters_;
  const Out* const staging_;
  const int lane_;
  // True: the last, incomplete piece of the previous run is still in the staging buffer, in front
  // of the next run.
  bool carried_ = false;
};

}  // namespace convx
