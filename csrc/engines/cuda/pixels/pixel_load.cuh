// Producer: stages source values by cp.async, or, for single 16-bit values, through registers.
#pragma once

#include "device/async_copy.cuh"
#include "engines/cuda/pixels/pixel_place.cuh"

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
    // Unless turn() is called, a thread reads only the entries that it wrote, and no barrier is
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
  __device__ __forceinline__ void turn() { thread_ = (thread_ + kLoaders - 64) % kLoaders; }

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

}  // namespace convx
