// The staging buffer, through which accumulators go from registers to the target. The MMA warps
// write to it and continue with the next tile; one store warp per warpgroup stores from it.
//
//   NCHW            [warpgroup][64 filters][staging_pitch]
//   channels_last   [warpgroup][position][kChannelPitch]
//   stored by TMA   [warpgroup][position][kBoxedFilterBytes], swizzled
//
// In NCHW, the pixels that a window has of one image are a contiguous run of each filter's plane,
// because the gaps between rows are not staged. A run is staged with the same misalignment, modulo
// 16 bytes, as it has in memory, so that whole 16-byte units can be copied. The first run, which
// has most of the pixels, is aligned modulo a 32-byte sector; otherwise its copies take a third
// longer. With Pace::kCarry it is aligned modulo kCarriedBytes, and in front of it lie the values
// of its first piece that the previous tile has left:
//
//   a filter   |carried|first run .  .  .  .  .|  |second run, of another image|
//              '-------'-----------------------'
//              piece   |piece  |piece  |piece  |
//
// Where pixels do not form runs (strips, odd widths), the columns are staged as they are, gaps
// included.
#pragma once

#include "device/mbarrier.cuh"
#include "engines/cuda/lines/window_place.cuh"

namespace convx {

// Where results go: the target, or the partial sums of a split-K slice.
template <typename Out>
struct StoreTarget {
  Out* base;
  int64_t n, c, h, w;
};

// True if Out may be the target's type, which is Bias; partial sums are float.
template <typename Out, typename Bias>
inline constexpr bool kWhole = sizeof(Out) == sizeof(Bias);

template <typename Out>
inline constexpr int kStoreUnit = 16 / static_cast<int>(sizeof(Out));

template <typename Out, int kColumns, Pace kPace>
inline constexpr int kStagingPitch =
    staging_pitch(kColumns, sizeof(Out), kPace) / static_cast<int>(sizeof(Out));

// A window is staged in kParts parts of kPartColumns columns, which start kPartStep columns apart.
template <typename Out, int kColumns>
inline constexpr int kParts = staging_parts(kColumns, sizeof(Out));
template <typename Out, int kColumns, Pace kPace>
inline constexpr int kPartStep = part_columns(kColumns, sizeof(Out), kPace);
template <typename Out, int kColumns, Pace kPace>
inline constexpr int kPartColumns = staging_columns(kColumns, sizeof(Out), kPace);

// Elements from one position to the next in channels_last. The 16-byte units that a warp writes for
// 8 positions fall on different banks.
template <typename Out>
inline constexpr int kChannelPitch = kWindowFilters + kStoreUnit<Out>;

// Where a part of a window starts.
template <int kStep>
__device__ __forceinline__ LinePoint locate_part(const WindowParams& p, int window, int part) {
  if (p.pair_rows == 0) return locate_position(p, window + part * kStep);
  LinePoint start = locate_position(p, window);
  start.column += part * kStep;
  // The window ends with its row, so this part has no pixels.
  if (start.column >= p.pitch) start.row = p.target_height;
  return start;
}

// The pixels that a part of a window has of one image.
template <typename Out>
struct PixelRun {
  static constexpr int kSector = 32 / static_cast<int>(sizeof(Out));

  int image, pixel;  // image, and index of the first pixel in its plane
  int pixels;
  int stored;  // pixels before the next part's first pixel
  // If true, each filter's stored pixels start (or end) at a sector boundary instead.
  bool cut_start, cut_end;
  int staged;     // where the run starts in a staged filter, without its misalignment
  int alignment;  // elements; the run's address modulo this is the same when staged and in memory
  Out* to;        // address of the first pixel for the first filter
  int distance;   // elements from one filter to the next, modulo 2^32

  __device__ __forceinline__ int bytes() const { return pixels * static_cast<int>(sizeof(Out)); }
  // Elements from the aligned address at or before a filter's run to the run. Filters are counted
  // from the warpgroup's first. For alignments up to a sector, filters that are eight apart have
  // the same misalignment.
  __device__ __forceinline__ int misalignment(int filter) const {
    return locate(filter) & (alignment - 1);
  }
  // The range of pixels that is stored for a filter: [first_stored, end_stored).
  __device__ __forceinline__ int first_stored(int filter) const {
    return cut_start ? -locate(filter) & (kSector - 1) : 0;
  }
  __device__ __forceinline__ int end_stored(int filter) const {
    const int more = cut_end ? -(locate(filter) + stored) & (kSector - 1) : 0;
    return min(stored + more, pixels);
  }

 private:
  // The address of a filter's run, in elements modulo 2^32.
  __device__ __forceinline__ int locate(int filter) const {
    return static_cast<int>(reinterpret_cast<size_t>(to) / sizeof(Out)) + filter * distance;
  }
};

// Iterates over the runs of a part of a window: up to kMaxRuns, the last of which may be empty.
template <typename Out, int kColumns, Pace kPace>
class WindowRuns {
  static constexpr int kUnit = kStoreUnit<Out>;
  static constexpr int kStep = kPartStep<Out, kColumns, kPace>;
  static constexpr int kWidth = kPartColumns<Out, kColumns, kPace>;

 public:
  using Run = PixelRun<Out>;

  // filter: the first one, counted over all groups.
  __device__ __forceinline__ WindowRuns(const WindowParams& p, const StoreTarget<Out>& target,
                                        int window, int part, int filter)
      : start(locate_part<kStep>(p, window, part)),
        p_(p),
        target_(target),
        to_(target.base + filter * target.c),
        image_(start.image),
        first_(start.row * p.pitch + start.column) {
    const bool is_last = part + 1 == kParts<Out, kColumns>;
    stored_left_ = is_last && !p.overlap ? kWidth : kStep;
    if (p.pair_rows > 0) {
      left_ = max(0, min(left_, p.pitch - start.column));
      stored_left_ = min(stored_left_, left_);
    }
    cut_start_ = part > 0 ? p.cut_sectors != 0 : p.overlap != 0;
    cut_end_ = is_last ? p.overlap != 0 : p.cut_sectors != 0;
  }

  __device__ __forceinline__ Run next() {
    const int image_positions = p_.rows * p_.pitch;
    const int here = max(0, min(left_, image_positions - first_));
    const int stored_here = max(0, min(stored_left_, image_positions - first_));
    const bool some = here > 0 && image_ < p_.images;
    Run run;
    run.image = image_;
    run.pixel = count_pixels(first_);
    run.pixels = some ? count_pixels(first_ + here) - run.pixel : 0;
    run.stored = some ? count_pixels(first_ + stored_here) - run.pixel : 0;
    run.cut_start = cut_start_ && run.pixel > 0;
    run.cut_end = cut_end_ && stored_here > 0 && stored_here == stored_left_ &&
                  first_ + stored_here < image_positions;
    run.staged = staged_;
    run.to = to_ + run.image * target_.n + run.pixel;
    run.distance = static_cast<int>(target_.c);
    run.alignment = staged_ == 0 ? kFirstAlignment : kUnit;
    staged_ += (run.pixels + run.alignment - 1 + kUnit - 1) & -kUnit;
    left_ -= here;
    stored_left_ -= stored_here;
    first_ = 0;
    ++image_;
    return run;
  }

  __device__ __forceinline__ bool is_last() const { return left_ <= 0; }

  const LinePoint start;

 private:
  static constexpr int kFirstAlignment = run_alignment(kPace) / static_cast<int>(sizeof(Out));

  // The number of an image's pixels before a position of its line.
  __device__ __forceinline__ int count_pixels(int position) const {
    int row = position;
    const int column = p_.by_pitch.split(row);
    return row < p_.target_height ? row * p_.target_width + min(column, p_.target_width)
                                  : p_.target_height * p_.target_width;
  }

  const WindowParams& p_;
  const StoreTarget<Out>& target_;
  Out* const to_;  // pixel 0 of image 0, for the first filter
  // The next run's image and its first position there, and the positions left for it and later
  // runs.
  int image_, first_;
  int left_ = kWidth, stored_left_;
  int staged_ = 0;
  bool cut_start_, cut_end_;
};

template <typename Out>
__device__ __forceinline__ void copy_pair(Out* to, const Out* from) {
  if constexpr (sizeof(Out) == 4) {
    *reinterpret_cast<float2*>(to) = *reinterpret_cast<const float2*>(from);
  } else {
    *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(from);
  }
}

// One warpgroup's share of a tile.
struct TileShare {
  int window, filter;  // first position, and first filter within its group

  __device__ __forceinline__ TileShare(const WindowParams& p, const TilePlace& tile,
                                       int warpgroup) {
    const bool same_window = p.filter_groups == 2;
    window = tile.first + (same_window ? 0 : warpgroup * p.second_window);
    filter = tile.filter + (same_window ? warpgroup * kWindowFilters : 0);
  }
};

template <typename Element>
__device__ __forceinline__ StoreTarget<Element> find_whole_target(const WindowParams& p) {
  return {static_cast<Element*>(p.target), p.target_n, p.target_c, p.target_h, p.target_w};
}

template <typename Out, int kColumns, Pace kPace>
__device__ __forceinline__ Out* find_staging(const WindowParams& p, char* memory, int warpgroup) {
  return reinterpret_cast<Out*>(memory + p.staging_offset) +
         warpgroup * kWindowFilters * kStagingPitch<Out, kColumns, kPace>;
}

// How an MMA warpgroup passes the staging buffer to its store warp, and gets it back.
class StagingWriter {
 public:
  __device__ __forceinline__ StagingWriter(const WindowRings& rings, int warpgroup)
      : full_(rings.staging_full + 8 * warpgroup), empty_(rings.staging_empty + 8 * warpgroup) {}

  // Waits until the store warp has read the previous part.
  __device__ __forceinline__ void wait() {
    wait_barrier(empty_, parity_);
    parity_ ^= 1;
  }
  __device__ __forceinline__ void hand_over() const {
    fence_async_proxy();  // every thread's results must be visible to the bulk copies
    arrive(full_);
  }

 private:
  const uint32_t full_, empty_;
  uint32_t parity_ = 1;
};

// The store warp's side of that.
class StagingReader {
 public:
  __device__ __forceinline__ StagingReader(const WindowRings& rings, int warpgroup)
      : full_(rings.staging_full + 8 * warpgroup), empty_(rings.staging_empty + 8 * warpgroup) {}

  __device__ __forceinline__ void wait() const { wait_barrier(full_, parity_); }
  __device__ __forceinline__ void release() {
    parity_ ^= 1;
    arrive(empty_);
  }

 private:
  const uint32_t full_, empty_;
  uint32_t parity_ = 0;
};

}  // namespace convx
