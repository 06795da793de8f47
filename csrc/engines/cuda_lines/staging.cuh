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

// Parts of a window that are staged one after the other, and their columns.
template <typename Out, int kColumns>
inline constexpr int kSpan = staging_columns(kColumns, sizeof(Out));
template <typename Out, int kColumns>
inline constexpr int kParts = kColumns / kSpan<Out, kColumns>;

// Of a part of a window and an image; empty where pixels is 0.
template <typename Out>
struct PixelRun {
  int image, pixel;  // its first
  int pixels;
  int staged;  // where in a staged row it starts, less what aligns it
  Out* to;     // of the first filter
};

// The runs of kWidth columns of a window.
template <typename Out, int kWidth>
class WindowRuns {
  static constexpr int kUnit = kStoreUnit<Out>;

 public:
  using Run = PixelRun<Out>;

  // offset: of the columns, within the window. filter: of all groups.
  __device__ __forceinline__ WindowRuns(const WindowParams& p, const StoreTarget<Out>& target,
                                        int window, int offset, int filter)
      : start(locate_position(p, p.pair_rows > 0 ? window : window + offset)),
        p_(p),
        filter_distance_(static_cast<int>(target.c)) {
    if (p.pair_rows > 0) {  // the window ends with its row
      start.column += offset;
      if (start.column >= p.pitch) start.row = p.target_height;
    }
    const int plane = p.target_height * p.target_width;
    const int image_positions = p.rows * p.pitch;
    int first = start.row * p.pitch + start.column;  // position of the image
    int left = kWidth, staged = 0;
    if (p.pair_rows > 0) left = min(left, p.pitch - start.column);
    Out* const to = target.base + filter * target.c;
#pragma unroll
    for (int i = 0; i < kMaxRuns; ++i) {
      const int end = min(first + left, image_positions);
      const bool some = left > 0 && start.image + i < p.images;
      Run& run = runs[i];
      run.image = start.image + i;
      run.pixel = i == 0 ? count_pixels(start.row, start.column) : 0;
      int end_column = end;
      run.pixels = 0;
      if (some) {
        const int column = p.by_pitch.split(end_column);  // leaves the row
        run.pixels =
            (end == image_positions ? plane : count_pixels(end_column, column)) - run.pixel;
      }
      run.staged = staged;
      run.to = to + run.image * target.n + run.pixel;
      staged += (run.pixels + 2 * (kUnit - 1)) & -kUnit;
      left -= end - first;
      first = 0;
    }
  }

  // Elements between the run of a filter (counted from the first) and the last unit's start before
  // it. Eight filters further it is the same.
  __device__ __forceinline__ int misalignment(const Run& run, int filter) const {
    return (static_cast<int>(reinterpret_cast<size_t>(run.to) / sizeof(Out)) +
            filter * filter_distance_) &
           (kUnit - 1);
  }

  LinePoint start;
  Run runs[kMaxRuns];

 private:
  // Of an image, before a point of its line.
  __device__ __forceinline__ int count_pixels(int row, int column) const {
    return row < p_.target_height ? row * p_.target_width + min(column, p_.target_width)
                                  : p_.target_height * p_.target_width;
  }

  const WindowParams& p_;
  const int filter_distance_;
};

}  // namespace convx
