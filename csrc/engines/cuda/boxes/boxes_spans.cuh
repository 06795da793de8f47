// BoxForm::kSpans: NCHW planes that begin anywhere within a 16-byte unit. A tile is 128 pixels of
// one image. In every channel they lie in up to 33 units (17 in 16 bits), of which the first and
// the last may hold values of other pixels too:
//
//     a channel's plane in memory   ....|..pp|pppp| ... |pppp|p...|   16-byte units, p: a pixel
//     a stage                       [channel][units]                  the same units, unshifted
//
// This file has the producer (SpanCopy), the fragment loader (SpanFragments) and the epilogue
// (SpanStaging) of that form.
#pragma once

#include "device/async_copy.cuh"
#include "engines/cuda/boxes/boxes_ring.cuh"
#include "engines/cuda/boxes/boxes_staging.cuh"
#include "kernels/fill_stages.cuh"

namespace convx {

// The pixels of a tile, in the planes of all channels of a tensor.
template <TensorMath kMath>
struct Span {
  static constexpr int kBytes = operand_bytes(kMath);
  static constexpr int kUnit = 16 / kBytes;  // values per 16-byte unit
  static constexpr int kWholeUnits = kBoxPixels / kUnit;

  uintptr_t first;  // address of the first pixel in the first channel
  int pixels;       // 128, or fewer at the end of a plane
  int64_t channel;  // bytes from one channel to the next

  __device__ __forceinline__ Span(const BoxesParams& p, int index, const void* tensor, int64_t n,
                                  int64_t c) {
    const BoxTile tile = locate_tile(p, index);
    first = reinterpret_cast<uintptr_t>(tensor) + kBytes * (tile.image * n + tile.column);
    pixels = min(kBoxPixels, p.plane - tile.column);
    channel = kBytes * c;
  }

  __device__ __forceinline__ uintptr_t locate(int64_t of_channel) const {
    return first + of_channel * channel;
  }
  // Address of a unit of a channel's span.
  __device__ __forceinline__ uintptr_t find_unit(int of_channel, int unit) const {
    return locate(of_channel) / 16 * 16 + 16 * unit;
  }
  // Bytes from the start of a unit to the channel's first pixel. Channels that are a multiple of
  // kUnit apart have the same shift.
  __device__ __forceinline__ int find_shift(int of_channel) const {
    return static_cast<int>(locate(of_channel) % 16);
  }
};

// Producer: all lanes copy the chunks of a tile's channels, one after the other, by cp.async. A
// thread copies the same unit of every kStep-th channel. Those channels have the same shift, so one
// pointer advances through the plane.
template <TensorMath kMath>
class SpanCopy {
  using Pixels = Span<kMath>;
  static constexpr int kChunk = box_chunk(kMath);
  static constexpr int kStep = 32 * kSpanWarps / Pixels::kWholeUnits;
  static_assert(kStep % Pixels::kUnit == 0 && kChunk % kStep == 0);

 public:
  static constexpr int kWarps = kSpanWarps;
  static constexpr bool kNamedBarriers = true;

  __device__ __forceinline__ SpanCopy(const BoxesParams& p, const void*, int index) : p_(p) {
    const Pixels pixels(p, index, p.source, p.source_n, p.source_c);
    const int thread = find_thread();
    from_ = pixels.find_unit(thread / Pixels::kWholeUnits, thread % Pixels::kWholeUnits);
    last_from_ = pixels.find_unit(thread % kChunk, Pixels::kWholeUnits);
    // Units that cannot hold a pixel of the tile, for any shift, are not copied.
    const int units = (pixels.pixels + 2 * Pixels::kUnit - 2) / Pixels::kUnit;
    copies_ = thread % Pixels::kWholeUnits < units;
    copies_last_ = thread < kChunk && units > Pixels::kWholeUnits;
  }

  // Skips chunks, to the start of a split-K slice.
  __device__ __forceinline__ void skip(int chunks) {
    from_ = reinterpret_cast<uintptr_t>(locate(from_, chunks * kChunk));
    last_from_ = reinterpret_cast<uintptr_t>(locate(last_from_, chunks * kChunk));
  }

  // Copies the next chunk. `channels`: channels that are left; a stage is filled with zeros past
  // them.
  __device__ __forceinline__ void copy(uint32_t to, int channels) {
    const int thread = find_thread();
    const int row = thread / Pixels::kWholeUnits, unit = thread % Pixels::kWholeUnits;
    const uint32_t unit_to = to + row * span_pitch(kMath) + 16 * unit;
    const uint32_t last_to = to + thread % kChunk * span_pitch(kMath) + 16 * Pixels::kWholeUnits;
    if (channels > kChunk) {  // no unit reaches past the tensor: another channel follows
      if (copies_) {
#pragma unroll
        for (int i = 0; i < kChunk; i += kStep) {
          copy_async<16>(unit_to + i * span_pitch(kMath), locate(from_, i), true);
        }
      }
      if (copies_last_) copy_async<16>(last_to, locate(last_from_, 0), true);
      return skip(1);
    }
    if (copies_) {
#pragma unroll 4
      for (int i = 0; i < kChunk; i += kStep) {
        copy_unit(unit_to + i * span_pitch(kMath), from_, i, channels - row - i);
      }
    }
    if (copies_last_) copy_unit(last_to, last_from_, 0, channels - thread % kChunk);
  }

 private:
  static __device__ __forceinline__ int find_thread() {
    return static_cast<int>(threadIdx.x) - kBoxMultipliers;
  }
  // The same unit, `channels` channels further.
  __device__ __forceinline__ const void* locate(uintptr_t unit, int channels) const {
    return reinterpret_cast<const void*>(unit + channels * Pixels::kBytes * p_.source_c);
  }
  // Copies a unit of the last chunk. `left`: channels from this unit's channel to the last one.
  __device__ __forceinline__ void copy_unit(uint32_t to, uintptr_t unit, int channels,
                                            int left) const {
    constexpr uint32_t kZeros[4] = {};
    if (left < 1) return store_16_bytes(to, kZeros);
    const void* const from = locate(unit, channels);
    if (left > 1 || count_bytes(from) >= 16) return copy_async<16>(to, from, true);
    gather_unit(static_cast<const uint16_t*>(from), static_cast<int>(count_bytes(from)) / 2, to);
  }
  // Bytes from there to the end of the tensor, which may be less than a unit. Reading before the
  // tensor's start is safe: a unit that begins before it belongs to the same allocation.
  __device__ __forceinline__ int64_t count_bytes(const void* from) const {
    const int64_t values =
        (p_.images - 1) * p_.source_n + (p_.group_sources - 1) * p_.source_c + p_.plane;
    return static_cast<const char*>(p_.source) + Pixels::kBytes * values -
           static_cast<const char*>(from);
  }

  const BoxesParams& p_;
  // In the next chunk: this thread's first unit, and the last unit of channel thread % kChunk.
  uintptr_t from_, last_from_;
  bool copies_, copies_last_;
};

// Fragment loader, see boxes_multiply.cuh.
template <TensorMath kMath>
class SpanFragments {
  using Pixels = Span<kMath>;
  static constexpr int kBytes = Pixels::kBytes;
  // An MMA has two units of channels. In each, a lane reads kOwn consecutive channels.
  static constexpr int kUnit = Pixels::kUnit;
  static constexpr int kOwn = kUnit / 4;

 public:
  static constexpr bool kUsed = true, kByTile = true;
  static constexpr bool kRounds = kMath == TensorMath::kTf32;

  __device__ __forceinline__ explicit SpanFragments(const BoxesParams& p) : p_(p) {}

  __device__ __forceinline__ void start_tile(int index) {
    const Pixels pixels(p_, index, p_.source, p_.source_n, p_.source_c);
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int channel = lane % 4 * kOwn + i;
      place_[i] = channel * span_pitch(kMath) + pixels.find_shift(channel) +
                  (first_warp_pixel() + lane / 4) * kBytes;
    }
  }

  __device__ __forceinline__ void load(uint32_t from, int /*stage*/, int /*piece*/, int step,
                                       uint32_t (&words)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // [half of the channels][lower or upper pixel]
      const uint32_t at =
          from + (2 * step + i / 2) * kUnit * span_pitch(kMath) + i % 2 * 8 * kBytes;
      if constexpr (kOwn == 1) {
        words[i] = load_word(at + place_[0]);
      } else {
        words[i] =
            __byte_perm(load_half_word(at + place_[0]), load_half_word(at + place_[1]), 0x5410);
      }
    }
  }

 private:
  const BoxesParams& p_;
  // Byte offsets of this lane's channels in a stage, at its lower pixel.
  uint32_t place_[kOwn] = {};
};

// Epilogue: a slice is [filter][span of units], with the pixels shifted as they are in the target.
template <TensorMath kMath>
class SpanStaging : BoxStaging<kMath> {
  using Base = BoxStaging<kMath>;
  using Base::kBytes, Base::p_, Base::lane_;
  using Pixels = Span<kMath>;
  static constexpr int kPitch = stored_span_pitch(kMath);

 public:
  static constexpr bool kHasBoxes = false;
  using Base::kGroups, Base::kSliceFilters, Base::load_bias, Base::read_bias;
  using typename Base::Element;

  __device__ __forceinline__ explicit SpanStaging(const BoxesParams& p) : Base(p) {}

  __device__ __forceinline__ Pixels locate(int index) const {
    return Pixels(p_, index, p_.target, p_.target_n, p_.target_c);
  }

  __device__ __forceinline__ void stage(const Pixels& pixels, const float* v, uint32_t staged,
                                        int /*piece*/) const {
    uint32_t to[2];  // this lane's two filters of the first group
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int own = lane_ % 4 * 2 + i;
      to[i] = staged + own * kPitch + pixels.find_shift(own) +
              (first_warp_pixel() + lane_ / 4) * kBytes;
    }
#pragma unroll
    for (int g = 0; g < kGroups; g += 2) {
      uint32_t words[4];
      if constexpr (kBytes == 2) Base::round_pairs(v + 4 * g, words);
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // [group][lower or upper pixel][filter]
        const uint32_t at = to[i % 2] + 8 * (g + i / 4) * kPitch + i / 2 % 2 * 8 * kBytes;
        if constexpr (kBytes == 2) {
          store_element(at, static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2)));
        } else {
          store_element(at, v[4 * g + i]);
        }
      }
    }
  }

  // All threads store units that belong entirely to the span: a thread has the same unit of every
  // kStep-th filter. Then one thread per filter stores the incomplete first unit, and another the
  // last one.
  __device__ __forceinline__ void store_values(const Pixels& pixels, int filter,
                                               uint32_t staged) const {
    const int filters = min(kSliceFilters, p_.group_targets - filter);
    store_whole_units(pixels, filter, filters, staged);
    static_assert(kSliceFilters % 32 == 0 && 2 * kSliceFilters <= kBoxMultipliers);
    const int row = static_cast<int>(threadIdx.x) % kSliceFilters;
    const int end = static_cast<int>(threadIdx.x) / kSliceFilters;
    if (end < 2 && row < filters) store_end(pixels, filter + row, end == 1, staged + row * kPitch);
  }

 private:
  __device__ __forceinline__ void store_whole_units(const Pixels& pixels, int filter, int filters,
                                                    uint32_t staged) const {
    constexpr int kStep = kBoxMultipliers / Pixels::kWholeUnits;
    static_assert(kStep % Pixels::kUnit == 0 && kSliceFilters % kStep == 0);
    const int row = static_cast<int>(threadIdx.x) / Pixels::kWholeUnits;
    const int unit = static_cast<int>(threadIdx.x) % Pixels::kWholeUnits;
    const int begin = pixels.find_shift(filter + row) - 16 * unit;
    if (begin > 0 || begin + pixels.pixels * kBytes < 16) return;
    auto* to = reinterpret_cast<char*>(pixels.find_unit(filter + row, unit));
    const int64_t step = kStep * kBytes * p_.target_c;
#pragma unroll
    for (int i = 0; i < kSliceFilters; i += kStep, to += step) {
      if (row + i >= filters) continue;
      uint32_t words[4];
      load_16_bytes(staged + (row + i) * kPitch + 16 * unit, words);
      store_global_16_bytes(to, words);
    }
  }

  // Stores the values of a filter's first or last unit that belong to the span, unless the whole
  // unit does. `staged`: the filter's row.
  __device__ __forceinline__ void store_end(const Pixels& pixels, int filter, bool last,
                                            uint32_t staged) const {
    int begin = pixels.find_shift(filter), end = begin + pixels.pixels * kBytes;
    if (last) {
      if (end < 16) return;  // the first unit has all values
      begin = end / 16 * 16;
    } else {
      if (begin == 0 && end >= 16) return;
      end = min(end, 16);
    }
    auto* const to = reinterpret_cast<char*>(pixels.find_unit(filter, 0));
    // Pieces grow from 2 to 8 bytes and shrink again, so that each is aligned to its size.
    const auto store_piece = [&](auto piece, bool is_next) {
      constexpr int kPiece = static_cast<int>(sizeof(piece));
      if (!is_next || begin + kPiece > end) return;
      *reinterpret_cast<decltype(piece)*>(to + begin) =
          load_element<decltype(piece)>(staged + begin);
      begin += kPiece;
    };
    if constexpr (kBytes == 2) store_piece(uint16_t{}, begin % 4 != 0);
    store_piece(uint32_t{}, begin % 8 != 0);
    store_piece(uint2{}, true);
    store_piece(uint32_t{}, true);
    if constexpr (kBytes == 2) store_piece(uint16_t{}, true);
  }
};

}  // namespace convx
