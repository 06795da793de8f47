// Producer: stages source values as split pairs of neighbouring columns, through registers.
//
//     stage [channel][row][pair of columns][component][2]
#pragma once

#include "device/vectors.cuh"
#include "engines/cuda/pixels/pixel_load.cuh"
#include "kernels/half_scales.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

// kLoaders: number of threads that load, whole warps.
template <TensorMath kMath, int kLoaders>
class PairLoader : public PixelLoader<float, kLoaders> {
  using Base = PixelLoader<float, kLoaders>;
  using Base::image_;
  using Base::p_;
  using Base::sources_;
  using Base::thread_;

 public:
  using Base::Base;

  // Fills a stage with a chunk of channels. Nothing is in flight on return.
  __device__ __forceinline__ bool load_chunk(uint32_t stage, int chunk) const {
    const bool whole = p_.copy_elements == p_.run;  // true: an entry is one load
    if (p_.run == 4) {
      whole ? split_chunk<4, 4>(stage, chunk) : split_chunk<4, 1>(stage, chunk);
    } else {
      whole ? split_chunk<2, 2>(stage, chunk) : split_chunk<2, 1>(stage, chunk);
    }
    return false;
  }

 private:
  // Splits entries of kRun values, loaded kElements at a time. A thread with fewer entries left
  // than a batch loads its last one again: branches would keep entries from being split together,
  // and would diverge lanes that check scaled fp16 together. A thread without entries stores
  // nothing.
  template <int kRun, int kElements>
  __device__ __forceinline__ void split_chunk(uint32_t stage, int chunk) const {
    constexpr int kBatch = kElements == 1 ? 4 : 8;  // entries in flight
    constexpr int kEntryBytes = kRun / 2 * pair_bytes(kMath);
    const uint32_t channel_bytes = p_.channel_pitch / 2 * pair_bytes(kMath);
    const bool some = thread_ < p_.entries;
    const int last = thread_ + (p_.entries - 1 - thread_) / kLoaders * kLoaders;
    const int lane = thread_ & 31;
#pragma unroll 1
    for (int first = thread_; first - lane < p_.entries; first += kBatch * kLoaders) {
      int offsets[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        offsets[b] = some ? sources_[min(first + b * kLoaders, last)] : -1;
      }
      const float* from = image_ + chunk * p_.chunk_channels * p_.source_c;
      uint32_t to = stage + first * kEntryBytes, to_last = stage + last * kEntryBytes;
#pragma unroll 1
      for (int channel = 0; channel < p_.chunk_channels; ++channel) {
        uint32_t values[kBatch][kRun];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          const float* const entry = from + static_cast<uint32_t>(max(offsets[b], 0));
#pragma unroll
          for (int v = 0; v < kRun; v += kElements) {
            load_words<kElements>(values[b] + v, entry + v, offsets[b] >= 0);
          }
        }
        if constexpr (is_half(kMath)) scale(values);
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (some) store_pairs(min(to + b * (kLoaders * kEntryBytes), to_last), values[b]);
        }
        from += p_.source_c;
        to += channel_bytes;
        to_last += channel_bytes;
      }
    }
  }

  // Scales values for fp16. The lanes of a warp have neighbouring entries of one channel.
  template <int kBatch, int kRun>
  __device__ __forceinline__ void scale(uint32_t (&values)[kBatch][kRun]) const {
    const float scale = p_.scales->source;
    float scaled[kBatch * kRun];
#pragma unroll
    for (int i = 0; i < kBatch * kRun; ++i) {
      uint32_t& value = values[i / kRun][i % kRun];
      scaled[i] = __uint_as_float(value) * scale;
      value = __float_as_uint(scaled[i]);
    }
    check_fitness(p_.scales, scaled, 0xffffffff);
  }

  using Pair = OperandPair<kMath>;
  static constexpr int kPlanes = count_planes(kMath);

  static __device__ __forceinline__ void store_pairs(uint32_t to, const uint32_t (&values)[4]) {
    const Pair first(__uint_as_float(values[0]), __uint_as_float(values[1]));
    const Pair second(__uint_as_float(values[2]), __uint_as_float(values[3]));
    if constexpr (kPlanes == 1) {
      store_8_bytes(to, first.part[0], second.part[0]);
    } else if constexpr (kPlanes == 2) {
      store_16_bytes(to, {first.part[0], first.part[1], second.part[0], second.part[1]});
    } else {
      store_8_bytes(to, first.part[0], first.part[1]);
      store_8_bytes(to + 8, first.part[2], second.part[0]);
      store_8_bytes(to + 16, second.part[1], second.part[2]);
    }
  }
  static __device__ __forceinline__ void store_pairs(uint32_t to, const uint32_t (&values)[2]) {
    const Pair pair(__uint_as_float(values[0]), __uint_as_float(values[1]));
    if constexpr (kPlanes == 2) {
      store_8_bytes(to, pair.part[0], pair.part[1]);
    } else {
#pragma unroll
      for (int part = 0; part < kPlanes; ++part) store_word(to + 4 * part, pair.part[part]);
    }
  }
};

}  // namespace convx
