// The four warps that bring source values into the ring, through registers, two chunks at a time.
#pragma once

#include "device/mbarrier.cuh"
#include "device/shared_memory.cuh"
#include "engines/cuda_pointwise/pointwise_ring.cuh"
#include "engines/tensor_types.cuh"

namespace convx {

// A thread's share of a chunk: 16 bytes of pixels of every kChannelStep-th channel.
template <TensorMath kMath>
class PointwiseLoader {
  using Element = typename TensorTypes<kMath>::Element;
  static constexpr int kUnit = 16 / static_cast<int>(sizeof(Element));  // pixels
  static constexpr int kRowUnits = kPointwisePixels / kUnit;
  static constexpr int kChannelStep = kPointwiseLoaders / kRowUnits;
  static constexpr int kChunk = pointwise_chunk(kMath);
  static constexpr int kUnits = kChunk / kChannelStep;
  static_assert(8 % kChannelStep == 0 && kUnits == 8);

 public:
  struct Batch {
    uint4 unit[kUnits];
  };

  __device__ __forceinline__ PointwiseLoader(const PointwiseParams& p, const BlockWork& work,
                                             int thread)
      : p_(p), tile_(work.first_tile), tile_step_(work.tile_step), channel_(thread / kRowUnits) {
    const int pixel = thread % kRowUnits * kUnit;
    pixel_ = pixel;
    // [channel / 8][pixel / 64][channel % 8][128 bytes], 16-byte pieces swizzled by channel % 8.
    place_ = pixel / 64 * kColumnTileBytes + channel_ * 128 + (pixel % 64 * 2 ^ channel_ << 4);
    source_ = static_cast<const Element*>(p.source) +
              static_cast<int64_t>(work.group) * p.group_sources * p.source_c;
    if (!is_done()) find_pixels();
  }

  __device__ __forceinline__ bool is_done() const { return tile_ >= p_.tiles; }

  // Starts to load the chunk it stands at, and goes on to the next.
  __device__ __forceinline__ void load(Batch& batch) {
    const int first = chunk_ * kChunk + channel_;
    const int64_t offset = first * p_.source_c;
    const int64_t step = kChannelStep * p_.source_c;
    if (p_.aligned_source) {
      const int channels = at_[0] != nullptr ? p_.group_sources - first : 0;
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
        batch.unit[j] = load_unit(offset + j * step, j * kChannelStep < channels);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
        batch.unit[j] = gather_unit(offset + j * step, first + j * kChannelStep < p_.group_sources);
      }
    }
    if (++chunk_ == p_.chunks) {
      chunk_ = 0;
      tile_ += tile_step_;
      if (!is_done()) find_pixels();
    }
  }

  // Writes a chunk as the tensor cores read it.
  __device__ __forceinline__ void store(const Batch& batch, uint32_t chunk) const {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const int channel = j * kChannelStep;  // beyond this thread's first
      const uint32_t to =
          chunk + (place_ ^ (channel % 8) << 4) + channel % 8 * 128 + channel / 8 * kOctetBytes;
      const uint4& unit = batch.unit[j];
      if constexpr (is_split(kMath)) {
        const SplitPair a(__uint_as_float(unit.x), __uint_as_float(unit.y));
        const SplitPair b(__uint_as_float(unit.z), __uint_as_float(unit.w));
#pragma unroll
        for (int part = 0; part < pointwise_parts(kMath); ++part) {
          store_8_bytes(to + part * chunk_part_bytes(kMath), a.part[part], b.part[part]);
        }
      } else {
        store_16_bytes(to, {unit.x, unit.y, unit.z, unit.w});
      }
    }
  }

 private:
  // Where this thread's pixels of the tile lie in the group's first channel; null: outside.
  __device__ __forceinline__ void find_pixels() {
    const int first = tile_ * kPointwisePixels + pixel_;
    if (p_.aligned_source) {
      const int image = p_.by_plane.divide(first);
      at_[0] =
          first < p_.pixels ? source_ + image * p_.source_n + (first - image * p_.plane) : nullptr;
      return;
    }
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const TargetPixel target(p_, first + i);
      const int row = target.row * p_.source_step_h + p_.offset_h0;
      const int column = target.column * p_.source_step_w + p_.offset_w0;
      const bool inside = first + i < p_.pixels &&
                          static_cast<unsigned>(row) < static_cast<unsigned>(p_.source_height) &&
                          static_cast<unsigned>(column) < static_cast<unsigned>(p_.source_width);
      at_[i] = inside
                   ? source_ + target.image * p_.source_n + row * p_.source_h + column * p_.source_w
                   : nullptr;
    }
  }

  __device__ __forceinline__ uint4 load_unit(int64_t offset, bool valid) const {
    return valid ? __ldg(reinterpret_cast<const uint4*>(at_[0] + offset)) : make_uint4(0, 0, 0, 0);
  }

  __device__ __forceinline__ uint4 gather_unit(int64_t offset, bool valid) const {
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      if (!valid || at_[i] == nullptr) continue;
      if constexpr (sizeof(Element) == 4) {
        words[i] = __ldg(reinterpret_cast<const uint32_t*>(at_[i] + offset));
      } else {
        const uint32_t bits = __ldg(reinterpret_cast<const uint16_t*>(at_[i] + offset));
        words[i / 2] |= bits << i % 2 * 16;
      }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  const PointwiseParams& p_;
  int tile_, chunk_ = 0;  // that are loaded next
  const int tile_step_;
  const int channel_;  // first of this thread's, in a chunk
  int pixel_;          // first of this thread's, in a tile
  uint32_t place_;     // of that channel and pixel, in a chunk
  const Element* source_;
  const Element* at_[kUnit];
};

template <TensorMath kMath>
__device__ __forceinline__ void load_sources(const PointwiseParams& p, const BlockWork& work,
                                             const PointwiseRing& ring, int thread) {
  using Loader = PointwiseLoader<kMath>;
  Loader loader(p, work, thread);
  RingCursor cursor;
  const auto hand_over = [&](const typename Loader::Batch& batch) {
    wait_barrier(ring.empty + 8 * cursor.slot, cursor.parity ^ 1);
    loader.store(batch, ring.chunks + cursor.slot * chunk_bytes(kMath));
    fence_async_proxy();
    __syncwarp();
    if (thread % 32 == 0) arrive(ring.full + 8 * cursor.slot);
    cursor.advance(p.stages);
  };
  // Splitting takes as long as loading: one chunk is split while the next is loaded. Else both are
  // loaded together, as the fence may wait for what is under way.
  constexpr bool kOverlap = is_split(kMath);
  if (loader.is_done()) return;
  typename Loader::Batch even, odd;
  loader.load(even);
#pragma unroll 1
  while (true) {
    const bool has_odd = !loader.is_done();
    if (has_odd) loader.load(odd);
    hand_over(even);
    if (!has_odd) return;
    const bool has_even = !loader.is_done();
    if (kOverlap && has_even) loader.load(even);
    hand_over(odd);
    if (!has_even) return;
    if (!kOverlap) loader.load(even);
  }
}

}  // namespace convx
