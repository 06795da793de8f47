// How sums lie between registers and the target. The warps that multiply stage their sums in shared
// memory and go on, and a warp of its own stores them from there.
//
//   staging [warpgroup][64 filters][staging_pitch]
//
// Pixels of an image that a window has are a run of each filter's plane, without the positions
// between rows; a run is staged where its 16-byte units are those of the plane, and the first,
// which has most pixels, where its sectors are, or its copies would take a third longer. Blocks
// that carry stage it where pieces of kCarriedBytes are; before it lies what they have of its first
// piece from the window before:
//
//   a filter   |carried|first run .  .  .  .  .|  |second run, of another image|
//              '-------'-----------------------'
//              piece   |piece  |piece  |piece  |
//
// Where runs cannot be (strips, odd widths), columns are staged as they are. Where channels lie
// together, so do the filters of a position:
//
//   staging [warpgroup][position][kChannelPitch]
//
// or, to be stored as a box, [warpgroup][position][kBoxedFilterBytes], swizzled.
#pragma once

#include "engines/cuda_lines/window_place.cuh"

namespace convx {

// Where sums go: the target, or a part's own copy of it.
template <typename Out>
struct StoreTarget {
  Out* base;
  int64_t n, c, h, w;
};

// Whether that may be the target, where Bias is the target's type; parts of a reduction are float.
template <typename Out, typename Bias>
inline constexpr bool kWhole = sizeof(Out) == sizeof(Bias);

template <typename Out>
inline constexpr int kStoreUnit = 16 / static_cast<int>(sizeof(Out));

template <typename Out, int kColumns, Pace kPace>
inline constexpr int kStagingPitch =
    staging_pitch(kColumns, sizeof(Out), kPace) / static_cast<int>(sizeof(Out));

// Parts of a window are staged one after the other: kPartStep columns apart, kPartColumns of each.
template <typename Out, int kColumns>
inline constexpr int kParts = staging_parts(kColumns, sizeof(Out));
template <typename Out, int kColumns, Pace kPace>
inline constexpr int kPartStep = part_columns(kColumns, sizeof(Out), kPace);
template <typename Out, int kColumns, Pace kPace>
inline constexpr int kPartColumns = staging_columns(kColumns, sizeof(Out), kPace);

// Elements from position to position where filters lie together. The pieces that a warp writes at a
// time, of 8 positions, fall on different banks.
template <typename Out>
inline constexpr int kChannelPitch = kWindowFilters + kStoreUnit<Out>;

// Where a part of a window starts.
template <int kStep>
__device__ __forceinline__ LinePoint locate_part(const WindowParams& p, int window, int part) {
  if (p.pair_rows == 0) return locate_position(p, window + part * kStep);
  LinePoint start = locate_position(p, window);
  start.column += part * kStep;
  if (start.column >= p.pitch) start.row = p.target_height;  // the window ends with its row
  return start;
}

// What a part of a window has of an image.
template <typename Out>
struct PixelRun {
  static constexpr int kSector = 32 / static_cast<int>(sizeof(Out));

  int image, pixel;  // its first
  int pixels;
  int stored;  // of them, before the next part's first pixel
  // Instead, each filter's pixels start and end where a sector does.
  bool cut_start, cut_end;
  int staged;     // where in a staged row it starts, less what aligns it
  int alignment;  // in elements, of what is staged as of memory
  Out* to;        // of the first filter
  int distance;   // of the next one, in elements modulo 2^32

  __device__ __forceinline__ int bytes() const { return pixels * static_cast<int>(sizeof(Out)); }
  // Elements between a filter's run and the start before it of what it is aligned to. Filters are
  // counted from the first; eight further it is the same if that is a sector, or less.
  __device__ __forceinline__ int misalignment(int filter) const {
    return locate(filter) & (alignment - 1);
  }
  // The first pixel that is stored for a filter, and the one behind its last.
  __device__ __forceinline__ int first_stored(int filter) const {
    return cut_start ? -locate(filter) & (kSector - 1) : 0;
  }
  __device__ __forceinline__ int end_stored(int filter) const {
    const int more = cut_end ? -(locate(filter) + stored) & (kSector - 1) : 0;
    return min(stored + more, pixels);
  }

 private:
  // In elements of memory, modulo 2^32.
  __device__ __forceinline__ int locate(int filter) const {
    return static_cast<int>(reinterpret_cast<size_t>(to) / sizeof(Out)) + filter * distance;
  }
};

// The runs of a part of a window, one after the other: kMaxRuns, the last of which may be empty.
template <typename Out, int kColumns, Pace kPace>
class WindowRuns {
  static constexpr int kUnit = kStoreUnit<Out>;
  static constexpr int kStep = kPartStep<Out, kColumns, kPace>;
  static constexpr int kWidth = kPartColumns<Out, kColumns, kPace>;

 public:
  using Run = PixelRun<Out>;

  // filter: the first, of all groups.
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

  // Of an image, before a position of its line.
  __device__ __forceinline__ int count_pixels(int position) const {
    int row = position;
    const int column = p_.by_pitch.split(row);
    return row < p_.target_height ? row * p_.target_width + min(column, p_.target_width)
                                  : p_.target_height * p_.target_width;
  }

  const WindowParams& p_;
  const StoreTarget<Out>& target_;
  Out* const to_;  // of the first pixel of image 0
  // The next run's image and first position there, and positions that are left for it and others.
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

}  // namespace convx
