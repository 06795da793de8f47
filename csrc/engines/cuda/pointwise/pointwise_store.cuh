// The epilogue. Each warp collects 16 filters in shared memory, [filter][pixel], and stores them in
// one of three ways: pieces of 128 bytes by ordinary 16-byte stores, whole rows of the tile (512
// bytes) by bulk copies, or value by value for other layouts.
#pragma once

#include <type_traits>

#include "device/async_copy.cuh"
#include "device/convert.cuh"
#include "device/mbarrier.cuh"
#include "device/memory.cuh"
#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/pointwise/pointwise_ring.cuh"
#include "kernels/epilogue.cuh"
#include "kernels/finish.cuh"

namespace convx {

template <TensorMath kMath>
class PointwiseStorer {
  using Element = typename TensorTypes<kMath>::Element;
  using Bits = std::conditional_t<sizeof(Element) == 4, float, uint16_t>;
  static constexpr int kBytes = static_cast<int>(sizeof(Element));
  static constexpr int kPiece = 128 / kBytes;  // pixels per 128 bytes
  static constexpr int kPieceGroups = kPiece / 8;
  static constexpr int kPieces = kPointwisePixels / kPiece;
  static constexpr int kUnit = 16 / kBytes;
  static constexpr int kRows = 16;  // filters per warp

 public:
  using Sums = WgmmaSums<kPointwisePixels>;

  // staging: address of the staging buffers of all warps.
  __device__ __forceinline__ PointwiseStorer(const PointwiseParams& p, const BlockWork& work,
                                             uint32_t staging)
      : p_(p),
        work_(work),
        lane_(static_cast<int>(threadIdx.x) & 31),
        warp_row_((static_cast<int>(threadIdx.x) & 127) / 32 * kRows),
        staging_(staging + threadIdx.x / 32 * (kRows * p.staging_pitch)) {
    if constexpr (is_half(kMath)) source_scale_ = p.scales->source;
    target_ = static_cast<Element*>(p.target) +
              (static_cast<int64_t>(work.group) * p.group_targets + work.filter) * p.target_c;
  }

  // What finishing needs of a filter, as it is loaded during the MMAs.
  struct Prefetched {
    float bias = 0;
    float scale = 1;  // scaled fp16
  };
  // This thread's two filters of 64.
  struct Filters {
    Prefetched low, high;
  };
  __device__ __forceinline__ Filters prefetch(int block) const {
    const int row = block * kPointwiseFilters + warp_row_ + lane_ / 4;
    return {prefetch_filter(row), prefetch_filter(row + 8)};
  }

  // Stores 64 filters, from 64 * block on.
  __device__ __forceinline__ void store(const Sums& sums, int tile, int block,
                                        const Filters& filters) const {
    const int row = block * kPointwiseFilters + warp_row_;  // within the block's filters
    if (row >= work_.filters) return;
    const int first = tile * kPointwisePixels;
    if constexpr (wants_whole_rows(kMath)) {
      if (p_.whole_rows && p_.aligned_target) return store_rows(sums, first, row, filters);
    }
    store_pieces(sums, first, row, filters);
  }

  // Waits for bulk stores. Call before the block ends.
  __device__ __forceinline__ void finish() const {
    if constexpr (wants_whole_rows(kMath)) {
      if (elect_lane()) wait_bulk_stores();
    }
  }

 private:
  // Stores piece by piece, with ordinary stores.
  __device__ __forceinline__ void store_pieces(const Sums& sums, int first, int row,
                                               const Filters& filters) const {
    const int rows = work_.filters - row;  // filters left
    Element* const to = target_ + row * p_.target_c;
    const int image = p_.by_plane.divide(first);
    const bool one_image = first + kPointwisePixels <= (image + 1) * p_.plane;
    Element* lines[kRows / 4];
    if (p_.aligned_target) find_lines(lines, to, first);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int pixel = first + piece * kPiece;
      __syncwarp();  // all lanes have stored the previous piece
      const float* const values = sums.value + piece * (4 * kPieceGroups);
      stage(values, filters, row, pixel, staging_);
      __syncwarp();
      if (is_split(kMath) && __any_sync(0xffffffff, has_not_finite(values))) {
        recompute(row, pixel, staging_);
        __syncwarp();
      }
      if (!p_.aligned_target) {
        store_pixels(to, pixel, rows);
        continue;
      }
      if (piece > 0 && !one_image) {
        find_lines(lines, to, pixel);
#pragma unroll
        for (Element*& line : lines) line -= piece * kPiece;  // store_lines adds it
      }
      store_lines(lines, piece * kPiece, pixel, rows);
    }
  }

  // Stores all pieces together, by bulk copies that continue while the warp goes on.
  __device__ __forceinline__ void store_rows(const Sums& sums, int first, int row,
                                             const Filters& filters) const {
    if (elect_lane()) wait_bulk_reads();
    __syncwarp();  // the previous bulk copies have read the buffer
    bool must_recompute = false;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const float* const values = sums.value + piece * (4 * kPieceGroups);
      stage(values, filters, row, first + piece * kPiece, staging_ + 128 * piece);
      must_recompute |= has_not_finite(values);
    }
    if (is_split(kMath) && __any_sync(0xffffffff, must_recompute)) {
      __syncwarp();
#pragma unroll 1
      for (int piece = 0; piece < kPieces; ++piece) {
        recompute(row, first + piece * kPiece, staging_ + 128 * piece);
      }
    }
    fence_async_proxy();
    __syncwarp();
    if (elect_lane()) send_rows(target_ + row * p_.target_c, first, work_.filters - row);
  }

  __device__ __forceinline__ float load_bias(int row) const {
    if (p_.bias == nullptr || row >= work_.filters) return 0.f;
    return to_accumulate(
        static_cast<const Element*>(p_.bias)[work_.group * p_.group_targets + work_.filter + row]);
  }

  __device__ __forceinline__ Prefetched prefetch_filter(int row) const {
    Prefetched filter;
    filter.bias = load_bias(row);
    if constexpr (is_half(kMath)) {
      const int own = work_.filter + min(row, work_.filters - 1);
      filter.scale = filter_scales(p_.scales)[work_.group * p_.group_targets + own];
    }
    return filter;
  }

  // Writes kPieceGroups groups of 8 pixels to [filter][kPiece pixels]. first_filter: the warp's.
  __device__ __forceinline__ void stage(const float* v, const Filters& filters, int first_filter,
                                        int first_pixel, uint32_t staged) const {
    const int pitch = p_.staging_pitch;
    // Made only when the accumulators are complete: registers are short before.
    using FinishFilter = Finish<is_split(kMath) ? TensorMath::kIeee : kMath>;
    const FinishFilter low(filters.low.bias, source_scale_, filters.low.scale);
    const FinishFilter high(filters.high.bias, source_scale_, filters.high.scale);
    float values[4 * kPieceGroups];
#pragma unroll
    for (int i = 0; i < 4 * kPieceGroups; ++i) values[i] = i % 4 < 2 ? low(v[i]) : high(v[i]);
    if constexpr (!is_split(kMath)) {
      all_at_least(values, p_.lowest);
    } else if (p_.lowest == 0) {
#pragma unroll
      for (float& value : values) {
        if (!is_not_finite(value)) value = at_least(value, 0);  // others are recomputed first
      }
    }
    if constexpr (kBytes == 4) {
      const uint32_t to = staged + lane_ / 4 * pitch + lane_ % 4 * 8;
#pragma unroll
      for (int g = 0; g < kPieceGroups; ++g) {
        const float* const s = values + 4 * g;
        store_8_bytes(to + 32 * g, __float_as_uint(s[0]), __float_as_uint(s[1]));
        store_8_bytes(to + 32 * g + 8 * pitch, __float_as_uint(s[2]), __float_as_uint(s[3]));
      }
    } else {
      // Four matrices of 8 filters by 8 pixels: the lower and upper filters of two groups.
      const uint32_t to = staged + lane_ % 16 * pitch + lane_ / 16 * 16;
#pragma unroll
      for (int g = 0; g < kPieceGroups; g += 2) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float* const s = values + 4 * (g + i);
          words[2 * i] = OperandPair<kMath>(s[0], s[1]).part[0];
          words[2 * i + 1] = OperandPair<kMath>(s[2], s[3]).part[0];
        }
        store_matrices(to + 16 * g, words);
      }
    }
  }

  // True if any of this thread's accumulators is not finite (its product with zero is then NaN).
  // Only splitting can make a value NaN that should be finite, so other precisions need no check.
  static __device__ __forceinline__ bool has_not_finite(const float* v) {
    if constexpr (!is_split(kMath)) return false;
    float probes[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 4 * kPieceGroups; ++i) probes[i % 2] = fmaf(v[i], 0.f, probes[i % 2]);
    return probes[0] + probes[1] != 0;
  }

  // Recomputes the staged values of a piece that became NaN or infinite by splitting; each lane has
  // one pixel.
  __device__ __forceinline__ void recompute(int row, int pixel, uint32_t staged) const {
    if constexpr (is_split(kMath)) {
      const int rows = min(kRows, work_.filters - row);
      if (pixel + lane_ >= p_.pixels) return;
      const TargetPixel at(p_, pixel + lane_);
#pragma unroll 1
      for (int i = 0; i < rows; ++i) {
        const uint32_t own = staged + i * p_.staging_pitch + lane_ * kBytes;
        if (!is_not_finite(load_element<float>(own))) continue;
        RecomputedSum sum{};
        sum.group = work_.group;
        sum.filter = work_.filter + row + i;
        sum.image = at.image, sum.row = at.row, sum.column = at.column;
        sum.last = p_.group_sources;
        float value = recompute_sum(p_, sum) + load_bias(row + i);
        value = at_least(value, p_.lowest);
        store_element(own, value);
      }
    }
  }

  // Eight lanes store 128 bytes of a filter's plane, so a warp stores four filters at a time. Finds
  // this lane's addresses for the piece that starts with first_pixel.
  __device__ __forceinline__ void find_lines(Element* (&lines)[kRows / 4], Element* to,
                                             int first_pixel) const {
    const int pixel = first_pixel + lane_ % 8 * kUnit;
    const int image = p_.by_plane.divide(pixel);
    to += image * p_.target_n + (pixel - image * p_.plane) + lane_ / 8 * p_.target_c;
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) lines[i] = to + 4 * i * p_.target_c;
  }

  __device__ __forceinline__ void store_lines(Element* const (&lines)[kRows / 4], int offset,
                                              int first_pixel, int rows) const {
    uint32_t units[kRows / 4][4];
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      load_16_bytes(staging_ + (4 * i + lane_ / 8) * p_.staging_pitch + lane_ % 8 * 16, units[i]);
    }
    const int left = first_pixel + lane_ % 8 * kUnit < p_.pixels ? rows - lane_ / 8 : 0;
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      if (4 * i < left) store_unit(lines[i] + offset, units[i]);
    }
  }

  static __device__ __forceinline__ void store_unit(Element* to, const uint32_t (&unit)[4]) {
    if constexpr (is_float32(kMath)) {
      store_global_16_bytes(to, unit);
    } else {
      stream_16_bytes(to, unit);  // about 4% faster in 16 bits
    }
  }

  // Bulk-copies the staged row of each filter, in two pieces if the tile has two images; called by
  // one lane.
  __device__ __forceinline__ void send_rows(Element* to, int first_pixel, int rows) const {
    const TwoImages images(p_, first_pixel, kPointwisePixels);
    const int own = (images.next - images.first) * kBytes;
    const int others = (images.end - images.next) * kBytes;
    send_parts(to + images.find(p_, false, p_.target_n), rows, staging_, own);
    if (others > 0)
      send_parts(to + images.find(p_, true, p_.target_n), rows, staging_ + own, others);
    commit_bulk_stores();
  }
  __device__ __forceinline__ void send_parts(Element* to, int rows, uint32_t from,
                                             int bytes) const {
#pragma unroll 1
    for (int row = 0; row < min(kRows, rows); ++row) {
      bulk_store(to, from, bytes);
      to += p_.target_c;
      from += p_.staging_pitch;
    }
  }

  // Any layout: neighbouring lanes store neighbouring pixels.
  __device__ __forceinline__ void store_pixels(Element* to, int first_pixel, int rows) const {
#pragma unroll 1
    for (int i = lane_; i < kPiece; i += 32) {
      if (first_pixel + i >= p_.pixels) return;
      const TargetPixel at(p_, first_pixel + i);
      Bits* at_pixel = reinterpret_cast<Bits*>(to + at.image * p_.target_n + at.row * p_.target_h +
                                               at.column * p_.target_w);
#pragma unroll 4
      for (int row = 0; row < min(kRows, rows); ++row) {
        *at_pixel = load_element<Bits>(staging_ + row * p_.staging_pitch + i * kBytes);
        at_pixel += p_.target_c;
      }
    }
  }

  const PointwiseParams& p_;
  const BlockWork& work_;
  const int lane_;
  const int warp_row_;  // this warp's first filter of 64
  const uint32_t staging_;
  float source_scale_ = 1;  // scaled fp16
  Element* target_;         // plane of the block's first filter
};

}  // namespace convx
