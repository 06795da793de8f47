// Stores sums: each warp stages pieces of 128 bytes of its 16 filters in shared memory, and a row
// of them leaves for its filter's plane by a bulk copy while the warp goes on.
#pragma once

#include <type_traits>

#include "device/async_copy.cuh"
#include "device/convert.cuh"
#include "device/global_memory.cuh"
#include "device/mbarrier.cuh"
#include "device/shared_memory.cuh"
#include "device/tensor_formats.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda_pointwise/pointwise_ring.cuh"
#include "engines/tensor_types.cuh"

namespace convx {

template <TensorMath kMath>
class PointwiseStorer {
  using Element = typename TensorTypes<kMath>::Element;
  using Bits = std::conditional_t<sizeof(Element) == 4, float, uint16_t>;
  static constexpr int kBytes = static_cast<int>(sizeof(Element));
  static constexpr int kPiece = 128 / kBytes;  // pixels
  static constexpr int kPieceGroups = kPiece / 8;
  static constexpr int kUnit = 16 / kBytes;
  static constexpr int kRows = 16;  // filters of a warp

 public:
  using Sums = WgmmaSums<kPointwisePixels>;

  // staging: of all warps.
  __device__ __forceinline__ PointwiseStorer(const PointwiseParams& p, const BlockWork& work,
                                             uint32_t staging)
      : p_(p),
        work_(work),
        lane_(static_cast<int>(threadIdx.x) & 31),
        warp_row_((static_cast<int>(threadIdx.x) & 127) / 32 * kRows),
        staging_(staging + threadIdx.x / 32 * (kRows * p.staging_pitch)) {
    target_ = static_cast<Element*>(p.target) +
              (static_cast<int64_t>(work.group) * p.group_targets + work.filter) * p.target_c;
  }

  // Of this thread's two filters of 64.
  struct Biases {
    float low, high;
  };
  __device__ __forceinline__ Biases load_biases(int block) const {
    const int row = block * kPointwiseFilters + warp_row_ + lane_ / 4;
    return {load_bias(row), load_bias(row + 8)};
  }

  // Sums of filters 64 * block and on.
  __device__ __forceinline__ void store(const Sums& sums, int tile, int block,
                                        const Biases& biases) const {
    const int row = block * kPointwiseFilters + warp_row_;  // of the block's filters
    const int rows = work_.filters - row;                   // that there are
    if (rows <= 0) return;
    Element* const to = target_ + row * p_.target_c;
    const int first = tile * kPointwisePixels;
#pragma unroll
    for (int piece = 0; piece < kPointwisePixels / kPiece; ++piece) {
      const float* values = sums.value + piece * (4 * kPieceGroups);
      const int place = piece & (p_.pieces - 1);  // among those that are staged together
      if (place == 0) {
        wait_bulk_reads();
        __syncwarp();  // what was staged before has left
      }
      const uint32_t staged = staging_ + 128 * place;
      stage(values, biases, staged);
      if constexpr (is_split(kMath)) {
        if (__any_sync(0xffffffff, has_spoilt(values))) {
          __syncwarp();
          mend(row, first + piece * kPiece, staged);
        }
      }
      if (place + 1 == p_.pieces) {
        fence_async_proxy();
        __syncwarp();
        send(to, first + (piece - place) * kPiece, rows);
      }
    }
  }

  // Before the block ends.
  __device__ __forceinline__ void finish() const { wait_bulk_stores(); }

 private:
  __device__ __forceinline__ float load_bias(int row) const {
    if (p_.bias == nullptr || row >= work_.filters) return 0.f;
    return to_accumulate(
        static_cast<const Element*>(p_.bias)[work_.group * p_.group_targets + work_.filter + row]);
  }

  static __device__ __forceinline__ float finish(float sum, float bias) {
    return is_split(kMath) ? fmaf(sum, kSplitUnscale, bias) : sum + bias;
  }

  static __device__ __forceinline__ uint32_t pack(float first, float second) {
    return kMath == TensorMath::kBFloat16 ? pack_bfloat16(first, second)
                                          : pack_float16(first, second);
  }

  // [filter][kPiece pixels]: the sums of kPieceGroups groups of 8 pixels.
  __device__ __forceinline__ void stage(const float* v, const Biases& biases,
                                        uint32_t staged) const {
    const int pitch = p_.staging_pitch;
    const float low_bias = biases.low, high_bias = biases.high;
    if constexpr (kBytes == 4) {
      const uint32_t to = staged + lane_ / 4 * pitch + lane_ % 4 * 8;
#pragma unroll
      for (int g = 0; g < kPieceGroups; ++g) {
        store_8_bytes(to + 32 * g, __float_as_uint(finish(v[4 * g], low_bias)),
                      __float_as_uint(finish(v[4 * g + 1], low_bias)));
        store_8_bytes(to + 32 * g + 8 * pitch, __float_as_uint(finish(v[4 * g + 2], high_bias)),
                      __float_as_uint(finish(v[4 * g + 3], high_bias)));
      }
    } else {
      // Four matrices of 8 filters by 8 pixels: lower and upper filters, of two groups.
      const uint32_t to = staged + lane_ % 16 * pitch + lane_ / 16 * 16;
#pragma unroll
      for (int g = 0; g < kPieceGroups; g += 2) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float* s = v + 4 * (g + i);
          words[2 * i] = pack(finish(s[0], low_bias), finish(s[1], low_bias));
          words[2 * i + 1] = pack(finish(s[2], high_bias), finish(s[3], high_bias));
        }
        store_matrices(to + 16 * g, words);
      }
    }
  }

  // Whether any of this thread's sums is not finite: then so is its product with zero.
  static __device__ __forceinline__ bool has_spoilt(const float* v) {
    float probes[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 4 * kPieceGroups; ++i) probes[i % 2] = fmaf(v[i], 0.f, probes[i % 2]);
    return probes[0] + probes[1] != 0;
  }

  // Forms spoilt sums of the piece anew, each lane those of a pixel.
  __device__ __forceinline__ void mend(int row, int pixel, uint32_t staged) const {
    if constexpr (is_split(kMath)) {
      const int rows = min(kRows, work_.filters - row);
      if (pixel + lane_ >= p_.pixels) return;
      const TargetPixel at(p_, pixel + lane_);
#pragma unroll 1
      for (int i = 0; i < rows; ++i) {
        const uint32_t own = staged + i * p_.staging_pitch + lane_ * kBytes;
        if (!is_spoilt(load_element<float>(own))) continue;
        SpoiltSum spoilt{};
        spoilt.group = work_.group;
        spoilt.filter = work_.filter + row + i;
        spoilt.image = at.image, spoilt.row = at.row, spoilt.column = at.column;
        spoilt.last = p_.group_sources;
        store_element(own, mend_sum(p_, spoilt) + load_bias(row + i));
      }
    }
  }

  // What is staged, from a pixel on: rows that there are.
  __device__ __forceinline__ void send(Element* to, int first_pixel, int rows) const {
    const int pixels = p_.pieces * kPiece;
    if (!p_.aligned_target) return send_pixels(to, first_pixel, pixels, rows);
    const TwoImages images(p_, first_pixel, pixels);
    // Single pieces would wait for each other.
    if (kBulkStores && p_.pieces > 1 && images.are_all(p_)) return send_rows(to, images, rows);
    send_units(to, first_pixel, pixels, rows);
  }

  // Each lane copies a filter's row, of the first image or of the second.
  __device__ __forceinline__ void send_rows(Element* to, const TwoImages& images, int rows) const {
    const int row = lane_ % kRows;
    const bool second = lane_ >= kRows;
    const int first = second ? images.next : images.first;
    const int pixels = (second ? images.end : images.next) - first;
    if (row >= rows || pixels <= 0) return;
    bulk_store(to + row * p_.target_c + images.find(p_, second, p_.target_n),
               staging_ + row * p_.staging_pitch + (first - images.first) * kBytes,
               pixels * kBytes);
    commit_bulk_stores();
  }

  // Of any number of images: each lane writes 16 bytes, which are of one.
  __device__ __forceinline__ void send_units(Element* to, int first_pixel, int pixels,
                                             int rows) const {
    const int row_units = pixels / kUnit;  // 8, 16 or 32
    const int unit = lane_ % row_units;
    const int pixel = first_pixel + unit * kUnit;
    if (pixel >= p_.pixels) return;
    const int image = p_.by_plane.divide(pixel);
    to += image * p_.target_n + (pixel - image * p_.plane);
#pragma unroll 4
    for (int row = lane_ / row_units; row < min(kRows, rows); row += 32 / row_units) {
      uint32_t words[4];
      load_16_bytes(staging_ + row * p_.staging_pitch + unit * 16, words);
      store_global_16_bytes(to + row * p_.target_c, words);
    }
  }

  // Any layout: neighbouring lanes write neighbouring pixels.
  __device__ __forceinline__ void send_pixels(Element* to, int first_pixel, int pixels,
                                              int rows) const {
#pragma unroll 1
    for (int i = lane_; i < pixels; i += 32) {
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
  const int warp_row_;  // first of this warp's, of 64 filters
  const uint32_t staging_;
  Element* target_;  // of the block's first filter
};

}  // namespace convx
