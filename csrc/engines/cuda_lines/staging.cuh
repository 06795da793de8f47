// How sums lie between registers and the target. The warps that multiply stage their sums in shared
// memory and go on, and a warp of its own stores them from there.
//
//   staging [warpgroup][64 filters][staging_pitch]
//
// Pixels of an image that a window has are a run of each filter's plane, without the positions
// between rows; a run is staged where its 16-byte units are those of the plane. Where that cannot
// be (strips, odd widths, channels that lie together), columns are staged as they are.
#pragma once

#include "engines/cuda_lines/window_place.cuh"

namespace convx {

// Where sums go: the target, or a part's own copy of it.
template <typename Out>
struct StoreTarget {
  Out* base;
  int64_t n, c, h, w;
};

template <typename Out>
inline constexpr int kStoreUnit = 16 / static_cast<int>(sizeof(Out));

template <typename Out, int kColumns>
inline constexpr int kStagingPitch =
    staging_pitch(kColumns, sizeof(Out)) / static_cast<int>(sizeof(Out));

// Parts of a window are staged one after the other: kPartStep columns apart, kPartColumns of each.
template <typename Out>
inline constexpr int kParts = staging_parts(sizeof(Out));
template <typename Out, int kColumns>
inline constexpr int kPartStep = part_columns(kColumns, sizeof(Out));
template <typename Out, int kColumns>
inline constexpr int kPartColumns = staging_columns(kColumns, sizeof(Out));

// What a part of a window has of an image.
template <typename Out>
struct PixelRun {
  int image, pixel;  // its first
  int pixels;
  int stored;  // of them, before the next part's first pixel
  // Instead, each filter's pixels start and end where a sector does.
  bool cut_start, cut_end;
  int staged;  // where in a staged row it starts, less what aligns it
  Out* to;     // of the first filter
};

// The runs of a part of a window.
template <typename Out, int kColumns>
class WindowRuns {
  static constexpr int kUnit = kStoreUnit<Out>;
  static constexpr int kStep = kPartStep<Out, kColumns>;
  static constexpr int kWidth = kPartColumns<Out, kColumns>;

 public:
  using Run = PixelRun<Out>;

  // filter: the first, of all groups.
  __device__ __forceinline__ WindowRuns(const WindowParams& p, const StoreTarget<Out>& target,
                                        int window, int part, int filter)
      : start(locate_position(p, p.pair_rows > 0 ? window : window + part * kStep)),
        p_(p),
        filter_distance_(static_cast<int>(target.c)) {
    if (p.pair_rows > 0) {  // the window ends with its row
      start.column += part * kStep;
      if (start.column >= p.pitch) start.row = p.target_height;
    }
    const int image_positions = p.rows * p.pitch;
    const bool is_last = part + 1 == kParts<Out>;
    int first = start.row * p.pitch + start.column;  // position of the image
    int left = kWidth;
    int stored_left = is_last && !p.overlap ? kWidth : kStep;
    if (p.pair_rows > 0) {
      left = max(0, min(left, p.pitch - start.column));
      stored_left = min(stored_left, left);
    }
    const bool cut_start = part > 0 ? p.cut_sectors != 0 : p.overlap != 0;
    const bool cut_end = is_last ? p.overlap != 0 : p.cut_sectors != 0;
    int staged = 0;
    Out* const to = target.base + filter * target.c;
#pragma unroll
    for (int i = 0; i < kMaxRuns; ++i) {
      const int here = max(0, min(left, image_positions - first));
      const int stored_here = max(0, min(stored_left, image_positions - first));
      const bool some = here > 0 && start.image + i < p.images;
      Run& run = runs[i];
      run.image = start.image + i;
      run.pixel = i == 0 ? count_pixels(first) : 0;
      run.pixels = some ? count_pixels(first + here) - run.pixel : 0;
      run.stored = some ? count_pixels(first + stored_here) - run.pixel : 0;
      run.cut_start = cut_start && run.pixel > 0;
      run.cut_end = cut_end && stored_here > 0 && stored_here == stored_left &&
                    first + stored_here < image_positions;
      run.staged = staged;
      run.to = to + run.image * target.n + run.pixel;
      staged += (run.pixels + 2 * (kUnit - 1)) & -kUnit;
      left -= here;
      stored_left -= stored_here;
      first = 0;
    }
  }

  // Elements between the run of a filter (counted from the first) and the last unit's start before
  // it. Eight filters further it is the same.
  __device__ __forceinline__ int misalignment(const Run& run, int filter) const {
    return locate(run, filter) & (kUnit - 1);
  }
  // The run's first pixel that is stored for a filter, and the one behind its last.
  __device__ __forceinline__ int first_stored(const Run& run, int filter) const {
    return run.cut_start ? -locate(run, filter) & (kSector - 1) : 0;
  }
  __device__ __forceinline__ int end_stored(const Run& run, int filter) const {
    const int more = run.cut_end ? -(locate(run, filter) + run.stored) & (kSector - 1) : 0;
    return min(run.stored + more, run.pixels);
  }

  LinePoint start;
  Run runs[kMaxRuns];

 private:
  static constexpr int kSector = 32 / static_cast<int>(sizeof(Out));

  // A filter's run, in elements of memory, modulo 2^32.
  __device__ __forceinline__ int locate(const Run& run, int filter) const {
    return static_cast<int>(reinterpret_cast<size_t>(run.to) / sizeof(Out)) +
           filter * filter_distance_;
  }

  // Of an image, before a position of its line.
  __device__ __forceinline__ int count_pixels(int position) const {
    int row = position;
    const int column = p_.by_pitch.split(row);
    return row < p_.target_height ? row * p_.target_width + min(column, p_.target_width)
                                  : p_.target_height * p_.target_width;
  }

  const WindowParams& p_;
  const int filter_distance_;
};

}  // namespace convx
