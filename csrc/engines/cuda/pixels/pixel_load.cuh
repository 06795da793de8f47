// Producers, which stage source values.
//
//     PixelLoader  by cp.async or, for single 16-bit values, through registers
//     PairLoader   as split pairs of neighbouring columns, through registers:
//                  stage [channel][row][pair of columns][component][2]
#pragma once

#include "device/async_copy.cuh"
#include "device/vectors.cuh"
#include "engines/cuda/pixels/pixel_place.cuh"
#include "kernels/half_scales.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

// kLoaders: number of threads that load.
template <typename Element, int kLoaders>
class PixelLoader {
 public:
  __device__ __forceinline__ PixelLoader(const PixelParams& p, int* sources, int thread)
      : p_(p), sources_(sources), thread_(thread) {}

  __device__ __forceinline__ void start_tile(const PixelTile& tile) {
    const StagedTile staged(p_, tile);
    const int positions = p_.channels_last ? 1 : p_.vector;
    // Unless rotate() is called, a thread reads only the entries that it wrote, and no barrier is
    // needed.
    for (int i = thread_; i < p_.entries; i += kLoaders) {
      sources_[i] = staged.source(i * positions);
    }
    image_ = static_cast<const Element*>(p_.source) + tile.image * p_.source_n +
             static_cast<int64_t>(tile.group) * p_.group_sources * p_.source_c;
  }

  // Fills a stage with a chunk of channels. Returns true if cp.async copies are in flight.
  __device__ __forceinline__ bool load_chunk(uint32_t stage, int chunk) {
    switch (p_.copy_elements * static_cast<int>(sizeof(Element))) {
      case 16:
        copy_chunk<16>(stage, chunk);
        break;
      case 8:
        copy_chunk<8>(stage, chunk);
        break;
      case 4:
        copy_chunk<4>(stage, chunk);
        break;
      default:
        store_chunk(stage, chunk);
        return false;
    }
    return true;
  }

  // Rotates the entries among the threads for the next chunk, so that the same threads do not
  // always have the most. Requires a barrier after start_tile(), because threads then read each
  // other's entries.
  __device__ __forceinline__ void rotate() { thread_ = (thread_ + kLoaders - 64) % kLoaders; }

 protected:
  const PixelParams& p_;
  int* const sources_;
  int thread_;
  const Element* image_ = nullptr;

 private:
  template <int kBytes>
  __device__ __forceinline__ void copy_chunk(uint32_t stage, int chunk) {
    constexpr int kElements = kBytes / static_cast<int>(sizeof(Element));
    const int first_channel = chunk * p_.chunk_channels;
    const int left = p_.channels - first_channel;
    const Element* const plane = image_ + first_channel * p_.source_c;
    const uint32_t shared_step = p_.copy_shared * sizeof(Element);
    const int pieces = p_.run / kElements;
#pragma unroll 1
    for (int i = thread_; i < p_.entries; i += kLoaders) {
      const int offset = sources_[i];
      const int channels = offset < 0 ? 0 : left;
      for (int piece = 0; piece < pieces; ++piece) {
        const Element* from = plane + max(offset, 0) + piece * kElements;
        uint32_t to = stage + (i * p_.entry_elements + piece * kElements) * sizeof(Element);
#pragma unroll 4
        for (int copy = 0, channel = 0; copy < p_.entry_copies; ++copy) {
          const bool valid = channel < channels;
          copy_async<kBytes>(to, valid ? from : plane, valid);
          from += p_.copy_source;
          to += shared_step;
          channel += p_.copy_channels;
        }
      }
    }
  }

  // Values that cp.async cannot copy: 16 bits, not aligned to 4 bytes.
  __device__ __forceinline__ void store_chunk(uint32_t stage, int chunk) {
    constexpr int kBatch = 8;
    const int first_channel = chunk * p_.chunk_channels;
    const int left = p_.channels - first_channel;
    const Element* const plane = image_ + first_channel * p_.source_c;
    const uint32_t shared_step = p_.copy_shared * sizeof(Element);
#pragma unroll 1
    for (int i = thread_; i < p_.entries; i += kLoaders) {
      const int offset = sources_[i];
      const int channels = offset < 0 ? 0 : left;
      for (int piece = 0; piece < p_.run; ++piece) {
        const Element* from = plane + max(offset, 0) + piece;
        uint32_t to = stage + (i * p_.entry_elements + piece) * sizeof(Element);
#pragma unroll 1
        for (int copy = 0; copy < p_.entry_copies; copy += kBatch) {
          uint16_t values[kBatch];
#pragma unroll
          for (int c = 0; c < kBatch; ++c) {
            const bool valid =
                copy + c < p_.entry_copies && (copy + c) * p_.copy_channels < channels;
            values[c] = valid ? __ldg(reinterpret_cast<const uint16_t*>(from)) : uint16_t{0};
            from += p_.copy_source;
          }
#pragma unroll
          for (int c = 0; c < kBatch; ++c) {
            if (copy + c < p_.entry_copies) store_element(to, values[c]);
            to += shared_step;
          }
        }
      }
    }
  }
};

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
