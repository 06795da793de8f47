// Loads a block's filters into shared memory, in the layout of wgmma's A operand.
#pragma once

#include "device/mbarrier.cuh"
#include "device/shared_memory.cuh"
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

}  // namespace convx
