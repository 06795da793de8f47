// The epilogue of a window. Accumulators are staged in shared memory by filter, 32 filters at a
// time, so that a warp writes runs of a filter's plane.
//
//     store_runs       the window is one run of pixels in each plane: aligned 16-byte stores
//     store_fragments  channels_last: stores from registers, two filters at a time
//     store_pixels     any other layout, value by value
#pragma once

#include "device/convert.cuh"
#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/pixels/pixel_place.cuh"
#include "kernels/epilogue.cuh"
#include "kernels/finish.cuh"

namespace convx {

// Destination of a window: the target, or the partial sums of a split-K slice.
template <typename Out>
struct PixelTarget {
  Out* base;
  int64_t n, c, h, w;
  bool contiguous;  // true: planes have no gaps
};

// A warpgroup's window of kBlocks * 64 pixels by kFilters filters.
template <TensorMath kMath, int kBlocks, int kFilters, typename Out, typename Bias>
class PixelStorer {
  static constexpr bool kExact = kMath == TensorMath::kIeee;
  static constexpr int kWindow = kBlocks * kPixelBlock;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(Out));
  static constexpr int kSector = 32 / static_cast<int>(sizeof(Out));
  static constexpr int kPitch = staging_elements(kWindow, sizeof(Out));

 public:
  // bias: bias of the tile's first filter, or null. staging, targets: this warpgroup's buffers.
  __device__ __forceinline__ PixelStorer(const PixelParams& p, const PixelTarget<Out>& target,
                                         const PixelTile& tile, int warpgroup, const Bias* bias,
                                         Out* staging, int* targets)
      : p_(p),
        target_(target),
        tile_(tile),
        bias_(bias),
        staging_(staging),
        targets_(targets),
        barrier_(1 + warpgroup),
        window_(tile.first + warpgroup * p.window_step),
        count_(min(kWindow, tile.end - window_)),
        filters_(min(kFilters, p.group_targets - tile.filter)),
        warp_((threadIdx.x & 127) / 32),
        lane_(threadIdx.x & 31) {}

  __device__ __forceinline__ void store(const WgmmaSums<kFilters> (&sums)[kBlocks]) {
    if (count_ <= 0) return;
    int last = window_ + count_ - 1;
    int image = window_;
    local_ = p_.by_plane.split(image);
    const bool one_image = p_.by_plane.divide(last) == image;
    base_ = target_.base + image * target_.n +
            (static_cast<int64_t>(tile_.group) * p_.group_targets + tile_.filter) * target_.c;
    const bool run = target_.contiguous && one_image;
    if (run) {
      base_ += local_;
    } else {
      synchronise();
      find_targets(image);
      synchronise();
      if (target_.c == 1 && store_fragments(sums)) return;
    }
    shift_ = run ? static_cast<int>(reinterpret_cast<size_t>(base_) / sizeof(Out)) : 0;
    shift_step_ = run ? static_cast<int>(target_.c) : 0;
#pragma unroll
    for (int part = 0; part < kFilters / kStoreFilters; ++part) {
      if (part * kStoreFilters < filters_) {
        const int filters = min(kStoreFilters, filters_ - part * kStoreFilters);
        synchronise();
        const bool must_recompute = stage(sums, part);
        if constexpr (!kExact) {
          synchronise();
        } else if (any_in_warpgroup(barrier_, must_recompute)) {
          recompute_part(part * kStoreFilters, filters);
          synchronise();
        }
        if (run) {
          store_runs(part * kStoreFilters, filters);
        } else {
          store_pixels(part * kStoreFilters, filters);
        }
      }
    }
  }

 private:
  // Barrier for this warpgroup.
  __device__ __forceinline__ void synchronise() const { wait_at_barrier(barrier_, 128); }

  __device__ __forceinline__ float load_bias(int filter) const {
    return bias_ != nullptr && filter < filters_ ? to_accumulate(bias_[filter]) : 0.f;
  }

  // The bias of a filter, and the factors that undo its scale. This is not Finish (finish.cuh),
  // which changes the registers of cuda_mma's kernels.
  struct FilterEnd {
    float bias = 0;
    Unscale unscale{};  // scaled fp16
  };

  __device__ __forceinline__ FilterEnd load_end(int filter) const {
    FilterEnd end;
    end.bias = load_bias(filter);
    if constexpr (is_half(kMath)) {
      const int of_all = tile_.group * p_.group_targets + tile_.filter + min(filter, filters_ - 1);
      end.unscale = Unscale(p_.scales->source, filter_scales(p_.scales)[of_all]);
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

  // Elements by which a filter's staged row is shifted, so that aligned 16 bytes of it are aligned
  // 16 bytes of the target.
  __device__ __forceinline__ int shift(int filter) const {
    return (shift_ + filter * shift_step_) & (kVector - 1);
  }

  __device__ __forceinline__ void find_targets(int first_image) const {
    for (int i = threadIdx.x & 127; i < kWindow; i += 128) {
      int rest = min(window_ + i, p_.pixels - 1);
      const int column = p_.by_target_width.split(rest);
      const int row = p_.by_target_height.split(rest);
      targets_[i] = (rest - first_image) * static_cast<int>(target_.n) +
                    row * static_cast<int>(target_.h) + column * static_cast<int>(target_.w);
    }
  }

  // Stages kStoreFilters filters. Returns true if a value that this thread staged must be
  // recomputed.
  __device__ __forceinline__ bool stage(const WgmmaSums<kFilters> (&sums)[kBlocks], int part) {
    constexpr int kCount = kStoreFilters / 4;  // filters of this thread
    const auto locate = [&](int i) { return 8 * (i / 2) + 2 * (lane_ & 3) + i % 2; };
    // Otherwise loads of scales would wait for the stores before them.
    constexpr bool kAhead = is_half(kMath);
    FilterEnd ends[kAhead ? kCount : 1];
    if constexpr (kAhead) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) ends[i] = load_end(part * kStoreFilters + locate(i));
    }
    bool must_recompute = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int filter = locate(i);
      const int of_tile = part * kStoreFilters + filter;
      if constexpr (!kAhead) ends[0] = load_end(of_tile);
      const FilterEnd& end = ends[kAhead ? i : 0];
      Out* const row = staging_ + filter * kPitch + shift(of_tile) + warp_ * 16 + lane_ / 4;
#pragma unroll
      // 8 pixels further each, then the next block.
      for (int half = 0; half < 2 * kBlocks; ++half) {
        const float* v = sums[half / 2].value + 4 * (part * (kStoreFilters / 8) + i / 2) + i % 2;
        const float sum = finish(v[half % 2 * 2], end);
        if constexpr (kExact) must_recompute |= is_not_finite(sum);
        row[half / 2 * kPixelBlock + half % 2 * 8] = round_to<Out>(bound_finite(sum));
      }
    }
    return must_recompute;
  }

  // Sums that overflowed are recomputed first.
  __device__ __forceinline__ float bound_finite(float sum) const {
    return kExact && is_not_finite(sum) ? sum : at_least(sum, p_.lowest);
  }

  __device__ __forceinline__ void recompute(Out& staged, int pixel, int filter) const {
    if constexpr (kExact) {
      if (!is_not_finite(staged)) return;
      RecomputedSum at{};
      at.group = tile_.group;
      at.filter = tile_.filter + filter;
      at.image = window_ + pixel;
      at.column = p_.by_target_width.split(at.image);
      at.row = p_.by_target_height.split(at.image);
      at.first = tile_.chunk * p_.chunk_channels;
      at.last = tile_.chunk_end * p_.chunk_channels;
      staged = at_least(recompute_sum(p_, at) + load_bias(filter), p_.lowest);
    }
  }

  // Recomputes staged values that became NaN or infinite by splitting. This is rare.
  __device__ __forceinline__ void recompute_part(int first_filter, int filters) const {
#pragma unroll 1
    for (int f = warp_; f < filters; f += 4) {
      const int filter = first_filter + f;
#pragma unroll 1
      for (int i = lane_; i < count_; i += 32) {
        recompute(staging_[f * kPitch + shift(filter) + i], i, filter);
      }
    }
  }

  // A lane stores aligned 16-byte units; the incomplete units at both ends are stored value by
  // value.
  __device__ __forceinline__ void store_runs(int first_filter, int filters) {
    constexpr int kRows = kStoreFilters / 4;                // per warp
    constexpr int kUnits = kWindow / kVector;               // per row
    constexpr int kAcross = kUnits < 32 ? 32 / kUnits : 1;  // rows at once
    constexpr int kAlong = kUnits > 32 ? kUnits / 32 : 1;   // units per lane and row
    const bool overlapping = p_.window_step < kWindow;
    const int own = lane_ % (32 / kAcross);
#pragma unroll 2
    for (int r = lane_ / (32 / kAcross); r < kRows; r += kAcross) {
      const int f = warp_ * kRows + r;
      const int filter = first_filter + f;
      if (f >= filters) break;
      const int aligned = shift_ + filter * shift_step_;  // modulo a sector
      const int skew = aligned & (kVector - 1);
      int low = 0, high = count_;
      if (overlapping) {  // windows store whole sectors, and no pixel twice
        const int to_sector = -aligned & (kSector - 1);
        if (local_ > 0) low = to_sector;
        high = min(high, p_.window_step + to_sector);
      }
      // Staged row and target row. Units of both begin at multiples of 16 bytes.
      const Out* const row = staging_ + f * kPitch;
      Out* const to = base_ + filter * target_.c - skew;
      low += skew;
      high += skew;
#pragma unroll
      for (int j = 0; j < kAlong; ++j) {
        const int u = (own + 32 * j) * kVector;
        if (u >= low && u + kVector <= high) {
          *reinterpret_cast<uint4*>(to + u) = *reinterpret_cast<const uint4*>(row + u);
        }
      }
      if (((low | high) & (kVector - 1)) != 0 && own < kVector) {
        const int units_low = min((low + kVector - 1) & -kVector, high);
        const int units_high = max(high & -kVector, units_low);
        if (low + own < units_low) to[low + own] = row[low + own];
        if (units_high + own < high) to[units_high + own] = row[units_high + own];
      }
    }
  }

  // Any layout, and any number of images.
  __device__ __forceinline__ void store_pixels(int first_filter, int filters) {
#pragma unroll 1
    for (int i = lane_; i < count_; i += 32) {
      const int offset = targets_[i];
#pragma unroll 4
      for (int f = warp_; f < filters; f += 4) {
        base_[offset + (first_filter + f) * target_.c] = staging_[f * kPitch + i];
      }
    }
  }

  // channels_last: stores accumulators in register order. Returns false if some must be recomputed.
  __device__ __forceinline__ bool store_fragments(const WgmmaSums<kFilters> (&sums)[kBlocks]) {
    if constexpr (kExact) {
      bool any = false;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < kFilters / 2; ++i) any |= is_not_finite(sums[block].value[i]);
      }
      if (any_in_warpgroup(barrier_, any)) return false;
    }
    struct alignas(2 * sizeof(Out)) Pair {
      Out first, second;
    };
    const bool pairs = target_.n % 2 == 0 && target_.h % 2 == 0 && target_.w % 2 == 0 &&
                       reinterpret_cast<size_t>(base_) % sizeof(Pair) == 0;
#pragma unroll
    for (int g = 0; g < kFilters / 8; ++g) {
      const int filter = 8 * g + 2 * (lane_ & 3);
      if (filter >= filters_) break;
      const FilterEnd first = load_end(filter), second = load_end(filter + 1);
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) {
        const int pixel = i / 2 * kPixelBlock + warp_ * 16 + lane_ / 4 + i % 2 * 8;
        if (pixel >= count_) continue;
        const float* v = sums[i / 2].value + 4 * g + 2 * (i % 2);
        Out* const to = base_ + targets_[pixel] + filter;
        const Pair pair{round_to<Out>(at_least(finish(v[0], first), p_.lowest)),
                        round_to<Out>(at_least(finish(v[1], second), p_.lowest))};
        if (pairs && filter + 1 < filters_) {
          *reinterpret_cast<Pair*>(to) = pair;
        } else {
          to[0] = pair.first;
          if (filter + 1 < filters_) to[1] = pair.second;
        }
      }
    }
    return true;
  }

  const PixelParams& p_;
  const PixelTarget<Out>& target_;
  const PixelTile& tile_;
  const Bias* const bias_;
  Out* const staging_;
  int* const targets_;
  const int barrier_;
  const int window_;   // first pixel
  const int count_;    // number of pixels
  const int filters_;  // number of filters
  const int warp_, lane_;
  // Plane of the tile's first filter; if the window is a run, the address of its first pixel.
  Out* base_ = nullptr;
  int local_ = 0;  // index of the window's first pixel in its image
  int shift_ = 0, shift_step_ = 0;
};

// Stores a warpgroup's window to the target, or to the partial sums of its split-K slice. staging,
// targets: this warpgroup's buffers in shared memory.
template <TensorMath kMath, int kBlocks, int kFilters>
__device__ __forceinline__ void store_window(const PixelParams& p, const PixelTile& tile,
                                             int warpgroup,
                                             const WgmmaSums<kFilters> (&sums)[kBlocks],
                                             char* staging, int* targets) {
  using Element = typename TensorTypes<kMath>::Element;
  const auto store = [&]<typename Out>(const PixelTarget<Out>& target, const Element* bias) {
    PixelStorer<kMath, kBlocks, kFilters, Out, Element>(p, target, tile, warpgroup, bias,
                                                        reinterpret_cast<Out*>(staging), targets)
        .store(sums);
  };
  const Element* bias = static_cast<const Element*>(p.bias);
  if (bias != nullptr) bias += tile.group * p.group_targets + tile.filter;
  const PixelTarget<Element> whole{
      static_cast<Element*>(p.target), p.target_n, p.target_c, p.target_h, p.target_w,
      p.plane_contiguous != 0};
  const PixelTarget<float> slice{p.partials + tile.split * p.partial_stride,
                                 p.partial_image,
                                 p.plane,
                                 p.target_width,
                                 1,
                                 true};
  visit_whole_or_slice(p.partials != nullptr, whole, slice, bias, store);
}

}  // namespace convx
