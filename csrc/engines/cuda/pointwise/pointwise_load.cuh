// Loads of a block's operands: the consumers place its filters, in the layout of wgmma's A operand,
// and four producer warps bring source values into the ring, in one of two ways.
//
//     load_all   through registers, with two chunks in flight
//     copy_all   by bulk copies into a raw ring (16 bits, rows of whole 16-byte units), requested
//                some chunks ahead by the warp that reads them
//
// Loads do not stay in flight across a chunk, because the compiler waits for all of them together
// and the fence for the tensor cores is a memory barrier. Bulk copies do.
#pragma once

#include <type_traits>

#include "device/mbarrier.cuh"
#include "device/memory.cuh"
#include "device/warp_roles.cuh"
#include "engines/cuda/pointwise/pointwise_ring.cuh"
#include "kernels/half_scales.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

// Loads eight channels of a filter, with zeros for missing ones.
template <typename Element>
__device__ __forceinline__ void load_filter(const PointwiseParams& p, const BlockWork& work,
                                            int row, int channel, float (&values)[8]) {
  const Element* from = static_cast<const Element*>(p.filters) + work.group * p.filter_group +
                        (work.filter + row) * p.filter_target + channel * p.filter_source;
  const int there = row < work.filters ? p.group_sources - channel : 0;
  if (p.aligned_filters) {  // then all eight exist, or none
    constexpr int kLoads = static_cast<int>(sizeof(Element)) / 2;
    union {
      uint4 words[kLoads];
      Element elements[8];
    } all;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      all.words[i] = there > 0 ? __ldg(reinterpret_cast<const uint4*>(from) + i) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = to_accumulate(all.elements[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = i < there ? to_accumulate(from[i * p.filter_source]) : 0.f;
    }
  }
}

// Writes [component][channel / 64][filter][128 bytes], with 16-byte units swizzled by filter % 8.
// Called by all threads of both consumer warpgroups.
template <TensorMath kMath>
__device__ __forceinline__ void place_filters(const PointwiseParams& p, const BlockWork& work,
                                              uint32_t memory) {
  using Element = typename TensorTypes<kMath>::Element;
  using Words = OperandWords<is_split(kMath) ? TensorMath::kIeee : kMath>;
  constexpr int kThreads = 32 * kPointwiseWarps;
  // Units of eight channels in flight per thread.
  constexpr int kBatch = is_float32(kMath) ? 4 : 8;
  const int octets = p.channel_rows * (kFilterChannels / 8);
  // Neighbouring threads read along the axis with the smaller stride.
  const bool along_channels = p.filter_source <= p.filter_target;
  const int pieces = p.tile_filters * octets;
#pragma unroll 1
  for (int first = static_cast<int>(threadIdx.x); first < pieces; first += kBatch * kThreads) {
    float values[kBatch][8];
    uint32_t to[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int piece = first + i * kThreads;
      const int row = along_channels ? piece / octets : piece % p.tile_filters;
      const int octet = along_channels ? piece % octets : piece / p.tile_filters;
      load_filter<Element>(p, work, piece < pieces ? row : work.filters, 8 * octet, values[i]);
      if constexpr (is_half(kMath)) {
        const int filter = work.filter + min(row, work.filters - 1);
        scale_filter(p.scales, work.group * p.group_targets + filter, values[i]);
      }
      to[i] = memory + (octet / 8 * p.tile_filters + row) * 128 + ((octet % 8 ^ row % 8) << 4);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * kThreads >= pieces) break;
      const Words words(values[i]);
#pragma unroll
      for (int part = 0; part < pointwise_parts(kMath); ++part) {
        const uint4& w = words.part[part];
        store_16_bytes(to[i] + part * p.filter_part_bytes, {w.x, w.y, w.z, w.w});
      }
    }
  }
}

// A thread's share of a chunk is 16 bytes of pixels in every kChannelStep-th channel.
template <TensorMath kMath>
class PointwiseLoader {
  using Element = typename TensorTypes<kMath>::Element;
  static constexpr int kUnit = 16 / static_cast<int>(sizeof(Element));  // pixels per 16 bytes
  static constexpr int kRowUnits = kPointwisePixels / kUnit;
  static constexpr int kChannelStep = kPointwiseLoaders / kRowUnits;
  static constexpr int kChunk = pointwise_chunk(kMath);
  static constexpr int kUnits = kChunk / kChannelStep;
  static constexpr int kWarpRows = 32 / kRowUnits;  // channels that a warp reads at once
  static constexpr int kRowBytes = kPointwisePixels * static_cast<int>(sizeof(Element));
  static_assert(8 % kChannelStep == 0 && kUnits == 8);

 public:
  // A warp's share of a raw stage: [unit][kWarpRows channels][kRowBytes].
  static constexpr int kRawRows = kUnits * kWarpRows;
  static_assert(kRawRows * kRowBytes == kRawShareBytes && kRawRows <= 32);

  struct Batch {
    uint4 unit[kUnits];
  };

  __device__ __forceinline__ PointwiseLoader(const PointwiseParams& p, const BlockWork& work,
                                             int thread)
      : p_(p), lane_(thread % 32), channel_(thread / kRowUnits) {
    if constexpr (is_half(kMath)) scale_ = p.scales->source;
    const int pixel = thread % kRowUnits * kUnit;
    pixel_ = pixel;
    // [channel / 8][pixel / 64][channel % 8][128 bytes], 16-byte pieces swizzled by channel % 8.
    place_ = pixel / 64 * kColumnTileBytes + channel_ * 128 + (pixel % 64 * 2 ^ channel_ << 4);
    source_ = static_cast<const Element*>(p.source) +
              static_cast<int64_t>(work.group) * p.group_sources * p.source_c;
  }

  // Requests this warp's share of a chunk; called by one lane. A row is one copy, or two if the
  // tile has pixels of two images.
  __device__ __forceinline__ void request(const ChunkCursor& at, int warp, uint32_t raw,
                                          uint32_t barrier) const {
    constexpr int kBytes = static_cast<int>(sizeof(Element));
    // Row i holds channel i / kWarpRows * kChannelStep + i % kWarpRows of the share.
    const int first = at.chunk * kChunk + warp * kWarpRows;
    const int channels = p_.group_sources - first;
    const int steps = max(0, channels) / kChannelStep, more = max(0, channels) % kChannelStep;
    const int rows = min(kRawRows, steps * kWarpRows + min(more, kWarpRows));
    const TwoImages images(p_, at.tile * kPointwisePixels, kPointwisePixels);
    const int own = (images.next - images.first) * kBytes;
    const int others = (images.end - images.next) * kBytes;
    const Element* const from = source_ + first * p_.source_c;
    arrive_expecting(barrier, rows * (own + others));
    copy_rows(from + images.find(p_, false, p_.source_n), rows, raw, own, barrier);
    if (others == 0) return;
    copy_rows(from + images.find(p_, true, p_.source_n), rows, raw + own, others, barrier);
  }

  // Reads this thread's units of a raw stage, after its copies have completed.
  __device__ __forceinline__ void read(const ChunkCursor& at, uint32_t raw, Batch& batch) const {
    const int channels = at.tile * kPointwisePixels + pixel_ < p_.pixels
                             ? p_.group_sources - at.chunk * kChunk - channel_
                             : 0;
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      uint32_t words[4];
      load_16_bytes(raw + j * (kWarpRows * kRowBytes) + lane_ * 16, words);
      const bool valid = j * kChannelStep < channels;
      batch.unit[j] = valid ? make_uint4(words[0], words[1], words[2], words[3]) : uint4{};
    }
  }

  // Issues the loads of a chunk into registers. find_pixels() must have been called for its tile.
  __device__ __forceinline__ void load(const ChunkCursor& at, Batch& batch) const {
    const int first = at.chunk * kChunk + channel_;
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
  }

  // Scales values for fp16, and sets the flag if they are not suitable.
  __device__ __forceinline__ void scale(Batch& batch) const {
    static_assert(kRowUnits == 32);  // a warp has neighbouring pixels of a channel
    float values[4 * kUnits];
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const uint4& unit = batch.unit[j];
      values[4 * j] = __uint_as_float(unit.x) * scale_;
      values[4 * j + 1] = __uint_as_float(unit.y) * scale_;
      values[4 * j + 2] = __uint_as_float(unit.z) * scale_;
      values[4 * j + 3] = __uint_as_float(unit.w) * scale_;
    }
    check_fitness(p_.scales, values, 0xffffffff);
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const float* const v = values + 4 * j;
      batch.unit[j] = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]),
                                 __float_as_uint(v[2]), __float_as_uint(v[3]));
    }
  }

  // Writes a chunk in the layout of wgmma's B operand.
  __device__ __forceinline__ void store(const Batch& batch, uint32_t chunk) const {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const int channel = j * kChannelStep;  // relative to this thread's first channel
      const uint32_t to =
          chunk + (place_ ^ (channel % 8) << 4) + channel % 8 * 128 + channel / 8 * kOctetBytes;
      const uint4& unit = batch.unit[j];
      if constexpr (is_float32(kMath)) {
        using Pair = OperandPair<is_split(kMath) ? TensorMath::kIeee : kMath>;
        const Pair a(__uint_as_float(unit.x), __uint_as_float(unit.y));
        const Pair b(__uint_as_float(unit.z), __uint_as_float(unit.w));
#pragma unroll
        for (int part = 0; part < pointwise_parts(kMath); ++part) {
          store_8_bytes(to + part * chunk_part_bytes(kMath), a.part[part], b.part[part]);
        }
      } else {
        store_16_bytes(to, {unit.x, unit.y, unit.z, unit.w});
      }
    }
  }

  // Finds the addresses of this thread's pixels in the group's first channel; null: outside the
  // image.
  __device__ __forceinline__ void find_pixels(int tile) {
    const int first = tile * kPointwisePixels + pixel_;
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

 private:
  // from: address of the first row.
  __device__ __forceinline__ void copy_rows(const Element* from, int rows, uint32_t raw, int bytes,
                                            uint32_t barrier) const {
#pragma unroll 1
    for (int row = 0; row < rows; row += kWarpRows) {
#pragma unroll
      for (int i = 0; i < kWarpRows; ++i) {
        if (row + i < rows) bulk_copy(raw + i * kRowBytes, from + i * p_.source_c, bytes, barrier);
      }
      raw += kWarpRows * kRowBytes;
      from += kChannelStep * p_.source_c;
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
  const int lane_;
  const int channel_;  // this thread's first channel in a chunk
  int pixel_;          // this thread's first pixel in a tile
  uint32_t place_;     // byte offset of that channel and pixel in a chunk
  float scale_ = 1;    // scaled fp16
  const Element* source_;
  const Element* at_[kUnit];  // addresses of this thread's pixels, for load()
};

// The producers' side of the ring.
template <TensorMath kMath>
class PointwiseProducer {
  using Loader = PointwiseLoader<kMath>;

 public:
  __device__ __forceinline__ PointwiseProducer(const PointwiseParams& p, const BlockWork& work,
                                               const PointwiseRing& ring, int thread)
      : p_(p), work_(work), ring_(ring), thread_(thread), loader_(p, work, thread) {}

  __device__ __forceinline__ void copy_all() {
    const int first_stage = thread_ / 32 * p_.raw_stages;
    const uint32_t raw = ring_.raw + first_stage * kRawShareBytes;
    const uint32_t barriers = ring_.raw_full + 8 * first_stage;
    ChunkCursor ahead(work_), here(work_);
    const auto request = [&](int stage) {
      if (ahead.is_done(p_)) return;
      if (elect_lane()) {
        loader_.request(ahead, thread_ / 32, raw + stage * kRawShareBytes, barriers + 8 * stage);
      }
      ahead.advance(p_, work_);
    };
#pragma unroll 1
    for (int stage = 0; stage < p_.raw_stages; ++stage) request(stage);
    RingCursor stage;
#pragma unroll 1
    for (; !here.is_done(p_); here.advance(p_, work_)) {
      wait_barrier(barriers + 8 * stage.slot, stage.parity);
      typename Loader::Batch batch;
      loader_.read(here, raw + stage.slot * kRawShareBytes, batch);
      __syncwarp();  // all lanes have read
      request(stage.slot);
      stage.advance(p_.raw_stages);
      hand_over(batch);
    }
  }

  __device__ __forceinline__ void load_all() {
    // Splitting takes as long as loading, so one chunk is split while the next is loaded. Other
    // values are loaded two chunks at a time.
    constexpr bool kOverlap = is_split(kMath);
    ChunkCursor at(work_);
    if (at.is_done(p_)) return;
    loader_.find_pixels(at.tile);
    const auto load = [&](typename Loader::Batch& batch) {
      loader_.load(at, batch);
      at.advance(p_, work_);
      if (at.chunk == 0 && !at.is_done(p_)) loader_.find_pixels(at.tile);
    };
    typename Loader::Batch even, odd;
    load(even);
#pragma unroll 1
    while (true) {
      const bool has_odd = !at.is_done(p_);
      if (has_odd) load(odd);
      hand_over(even);
      if (!has_odd) return;
      const bool has_even = !at.is_done(p_);
      if (kOverlap && has_even) load(even);
      hand_over(odd);
      if (!has_even) return;
      if (!kOverlap) load(even);
    }
  }

 private:
  __device__ __forceinline__ void hand_over(typename Loader::Batch& batch) {
    if constexpr (is_half(kMath)) loader_.scale(batch);
    wait_barrier(ring_.empty + 8 * cursor_.slot, cursor_.parity ^ 1);
    loader_.store(batch, ring_.chunks + cursor_.slot * chunk_bytes(kMath));
    fence_async_proxy();
    __syncwarp();
    if (thread_ % 32 == 0) arrive(ring_.full + 8 * cursor_.slot);
    cursor_.advance(p_.stages);
  }

  const PointwiseParams& p_;
  const BlockWork& work_;
  const PointwiseRing& ring_;
  const int thread_;
  Loader loader_;
  RingCursor cursor_;
};

template <TensorMath kMath>
__device__ __forceinline__ void load_sources(const PointwiseParams& p, const BlockWork& work,
                                             const PointwiseRing& ring, int thread) {
  PointwiseProducer<kMath> producer(p, work, ring, thread);
  if constexpr (wanted_raw_stages(kMath) > 0) {
    if (p.raw_stages > 0 && p.aligned_source) return producer.copy_all();
  }
  producer.load_all();
}

}  // namespace convx
