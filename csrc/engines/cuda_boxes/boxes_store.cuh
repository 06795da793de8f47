// The multiplying warps put a tile's sums together in shared memory, as many filters of all pixels
// at a time as have 128 bytes; the copy engine stores them while they go on.
//
//   staging [pixel][128 bytes of filters], or of NCHW planes [line][filter][128 bytes of pixels]
#pragma once

#include "device/async_copy.cuh"
#include "device/box_copy.cuh"
#include "device/convert.cuh"
#include "device/shared_memory.cuh"
#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda_boxes/boxes_ring.cuh"
#include "engines/tensor_types.cuh"

namespace convx {

template <TensorMath kMath, int kFilters, bool kPlanes>
class BoxStorer {
  using Element = typename TensorTypes<kMath>::Element;
  static constexpr int kBytes = static_cast<int>(sizeof(Element));
  static constexpr int kSliceFilters = kBoxLineBytes / kBytes;
  static constexpr int kGroups = kSliceFilters / 8;  // of 8 filters, in a slice
  // Of planes: pixels of a line, and bytes of a line's filters.
  static constexpr int kLinePixels = line_pixels(kMath);
  static constexpr int kLineBytes = kSliceFilters * kBoxLineBytes;

 public:
  __device__ __forceinline__ BoxStorer(const BoxesParams& p, const BoxesRing& ring,
                                       const void* target_map)
      : p_(p), ring_(ring), map_(target_map), lane_(static_cast<int>(threadIdx.x) & 31) {
    const int pixel = threadIdx.x / 32 * 16;  // first of this warp's
    if constexpr (kPlanes) {
      place_ = pixel / kLinePixels * kLineBytes + pixel % kLinePixels * kBytes;
    } else {
      place_ = pixel * kBoxLineBytes;
    }
  }

  // Of the tile with an index.
  __device__ __forceinline__ void store(const WgmmaSums<kFilters>& sums, int index) {
    const int first_filter = locate_filter(p_, index, kFilters);
    const auto place = [&] {
      if constexpr (kPlanes) {
        return locate_lines<kMath>(p_, index);
      } else {
        return locate_tile(p_, index);
      }
    }();
#pragma unroll
    for (int slice = 0; slice < kFilters / kSliceFilters; ++slice) {
      const int filter = first_filter + slice * kSliceFilters;
      if (filter >= p_.group_targets) break;
      const uint32_t staged = ring_.staging + turn_ * kBoxStagingBytes;
      turn_ ^= 1;
      // What lay there has left; the slice before it may still be on its way.
      if (threadIdx.x < 32 && elect_lane()) wait_bulk_reads<1>();
      wait_at_barrier<1, kBoxMultipliers>();
      if constexpr (kPlanes) {
        stage_turned(sums.value + slice * (4 * kGroups), filter, staged + place_);
      } else {
        stage(sums.value + slice * (4 * kGroups), filter, staged + place_);
      }
      fence_async_proxy();
      wait_at_barrier<1, kBoxMultipliers>();
      if (!p_.boxed_target) {
        if constexpr (kPlanes) {
          store_plane_values(place, filter, staged);
        } else {
          store_values(place, filter, staged);
        }
      } else if (threadIdx.x < 32 && elect_lane()) {
        if constexpr (kPlanes) {
          store_lines(place, filter, staged);
        } else {
          box_store(map_, filter * (kBytes / 2), place.column, place.row, place.image, staged);
        }
        commit_bulk_stores();
      }
    }
  }

  // Before the block ends.
  __device__ __forceinline__ void finish() const {
    if (threadIdx.x < 32 && elect_lane()) wait_bulk_stores();
  }

 private:
  __device__ __forceinline__ float load_bias(int filter) const {
    if (p_.bias == nullptr || filter >= p_.group_targets) return 0.f;
    return to_accumulate(static_cast<const Element*>(p_.bias)[filter]);
  }

  // Sums of 16 bits, of two groups: [group][lower or upper pixels], two filters a word.
  __device__ __forceinline__ void round_pairs(const float* v, int filter,
                                              uint32_t (&words)[4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float b0 = load_bias(filter + 8 * i), b1 = load_bias(filter + 8 * i + 1);
      words[2 * i] = OperandPair<kMath>(v[4 * i] + b0, v[4 * i + 1] + b1).part[0];
      words[2 * i + 1] = OperandPair<kMath>(v[4 * i + 2] + b0, v[4 * i + 3] + b1).part[0];
    }
  }

  // [pixel][kSliceFilters], swizzled, of this warp's 16 pixels.
  __device__ __forceinline__ void stage(const float* v, int filter, uint32_t staged) const {
    filter += lane_ % 4 * 2;
    if constexpr (kBytes == 4) {
      const uint32_t to = staged + lane_ / 4 * kBoxLineBytes + lane_ % 4 * 8;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float b0 = load_bias(filter + 8 * g), b1 = load_bias(filter + 8 * g + 1);
        const uint32_t at = swizzle_line(to + 32 * g);
        store_8_bytes(at, __float_as_uint(v[4 * g] + b0), __float_as_uint(v[4 * g + 1] + b1));
        store_8_bytes(at + 8 * kBoxLineBytes, __float_as_uint(v[4 * g + 2] + b0),
                      __float_as_uint(v[4 * g + 3] + b1));
      }
    } else {
      // Four matrices of 8 pixels by 8 filters: lower and upper pixels, of two groups.
      const uint32_t to = staged + lane_ % 16 * kBoxLineBytes + lane_ / 16 * 16;
#pragma unroll
      for (int g = 0; g < kGroups; g += 2) {
        uint32_t words[4];
        round_pairs(v + 4 * g, filter + 8 * g, words);
        store_matrices(swizzle_line(to + 16 * g), words);
      }
    }
  }

  // The same of planes: [filter][pixels].
  __device__ __forceinline__ void stage_turned(const float* v, int filter, uint32_t staged) const {
    filter += lane_ % 4 * 2;
    if constexpr (kBytes == 4) {
      const uint32_t to = staged + lane_ % 4 * 2 * kBoxLineBytes + lane_ / 4 * 4;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float bias = load_bias(filter + 8 * g + i);
          const uint32_t at = to + (8 * g + i) * kBoxLineBytes;
          store_element(swizzle_line(at), v[4 * g + i] + bias);
          store_element(swizzle_line(at + 32), v[4 * g + 2 + i] + bias);
        }
      }
    } else {
      // Four matrices of 8 filters by 8 pixels: lower and upper pixels, of two groups.
      const int matrix = lane_ / 8;
      const uint32_t to = staged + (matrix / 2 * 8 + lane_ % 8) * kBoxLineBytes + matrix % 2 * 16;
#pragma unroll
      for (int g = 0; g < kGroups; g += 2) {
        uint32_t words[4];
        round_pairs(v + 4 * g, filter + 8 * g, words);
        store_turned_matrices(swizzle_line(to + 8 * g * kBoxLineBytes), words);
      }
    }
  }

  // By one lane: a box for each line that there is.
  __device__ __forceinline__ void store_lines(int first, int filter, uint32_t staged) const {
    const int count = min(tile_lines(kMath), p_.lines - first);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const PlaneLine line(p_, first + i);
      box_store(map_, line.index * kBoxWords, filter, line.image, 0, staged + i * kLineBytes);
    }
  }

  __device__ __forceinline__ void store_plane_values(int first, int filter, uint32_t staged) const {
    constexpr int kWords = kBytes / 2;
    const int count = min(tile_lines(kMath), p_.lines - first);
    for (int i = threadIdx.x; i < count * kSliceFilters * kBoxWords; i += kBoxMultipliers) {
      const PlaneLine line(p_, first + i / (kSliceFilters * kBoxWords));
      const int own = filter + i / kBoxWords % kSliceFilters;
      const int word = line.index * kBoxWords + i % kBoxWords;
      if (own >= p_.group_targets || word >= p_.plane * kWords) continue;
      static_cast<uint16_t*>(
          p_.target)[kWords * (line.image * p_.target_n + own * p_.target_c) + word] =
          load_element<uint16_t>(swizzle_line(staged + 2 * i));
    }
  }

  // Where the target starts at an odd address and has no map: by words of 16 bits.
  __device__ __forceinline__ void store_values(const BoxTile& tile, int filter,
                                               uint32_t staged) const {
    constexpr int kWords = kBytes / 2;
    auto* const target = static_cast<uint16_t*>(p_.target) + filter * kWords;
    const int left = (p_.group_targets - filter) * kWords;
    const int pixels = p_.box_columns * p_.box_rows * p_.box_images;
    for (int i = threadIdx.x; i < pixels * kBoxWords; i += kBoxMultipliers) {
      const int word = i % kBoxWords;
      int image = i / kBoxWords;
      const int column = tile.column + p_.by_box_columns.split(image);
      const int row = tile.row + p_.by_box_rows.split(image);
      image += tile.image;
      if (word >= left || column >= p_.target_width || row >= p_.target_height ||
          image >= p_.images) {
        continue;
      }
      target[kWords * (image * p_.target_n + row * p_.target_h + column * p_.target_w) + word] =
          load_element<uint16_t>(swizzle_line(staged + 2 * i));
    }
  }

  const BoxesParams& p_;
  const BoxesRing& ring_;
  const void* const map_;
  const int lane_;
  uint32_t place_;     // bytes to this warp's pixels
  uint32_t turn_ = 0;  // which of the two is next
};

}  // namespace convx
