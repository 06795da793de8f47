// The loader warps of a worker: dY from global memory to the stages that the MMAs read.
//
// Rows of dY are read through registers, as any stride and any address allow it, and float32 values
// become components on the way. Every thread has the loads of the next stage in flight while it
// stores the previous one.
//
// Columns adjacent (NCHW): a stage is MN-major, [64 filters][64 pixels]. A warp has 16 filters, a
// lane two pixels. Channels adjacent (channels_last): it is K-major, [64 pixels][64 filters]. A
// thread has 8 filters of 4 pixels. Rows have 128 bytes, swizzled (device/wgmma_descriptors.cuh).
#pragma once

#include "device/mbarrier.cuh"
#include "engines/cuda/input_grad/col2im_memory.cuh"
#include "kernels/half_scales.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

template <TensorMath kMath, bool kColumnsAdjacent>
class Col2imLoader {
  using T = typename TensorTypes<kMath>::Element;
  static constexpr int kComponents = count_planes(kMath);
  static constexpr bool kIsFloat = sizeof(T) == 4;
  static constexpr int kRows = 16;  // filters of a warp, columns adjacent
  static constexpr int kUnits = 4;  // units of 8 filters of a thread, channels adjacent

  // The values of a thread: one in a word, or two if 16-bit values are vectors.
  using Values = uint32_t[32];

 public:
  // thread: of the worker's loader warps.
  __device__ Col2imLoader(const Col2imParams& p, const Col2imMemory& memory,
                          const ChannelTile& tile, int worker, int thread)
      : p_(p),
        g_(p.g),
        range_(p.g, p.images, tile.range * kWorkers + worker),
        full_(memory.full + 8 * worker * kMaxStages),
        empty_(memory.empty + 8 * worker * kMaxStages),
        stages_(memory.source + worker * p.g.stages * kComponents * kStageBytes),
        warp_(thread / 32),
        lane_(thread % 32) {
    source_ = static_cast<const T*>(p.source) + int64_t{tile.group} * g_.filters * g_.y_strides.c;
    if constexpr (is_half(kMath)) scale_ = p.scales->source;
  }

  __device__ void run() {
    Values even, odd;
    bool more = advance();
    if (more) load(even);
    while (more) {
      more = advance();
      if (more) load(odd);
      store(even);
      if (!more) return;
      more = advance();
      if (more) load(even);
      store(odd);
    }
  }

 private:
  // Moves on to the next stage. Returns false if there is none.
  __device__ __forceinline__ bool advance() {
    if (++depth_ < g_.depth_chunks) return true;
    depth_ = 0;
    while (++step_ >= last_) {
      if (!range_.advance()) return false;
      step_ = max(range_.first - g_.halo_steps, 0) - 1;
      last_ = min(range_.last, g_.out_height);
      first_pixel_ = range_.first_pixel();
    }
    return true;
  }

  __device__ __forceinline__ void load(Values& values) const {
    const T* const row = source_ + range_.image * g_.y_strides.n + step_ * g_.y_strides.h;
    if constexpr (kColumnsAdjacent) {
      load_columns(values, row);
    } else {
      load_channels(values, row);
    }
  }

  static __device__ __forceinline__ uint32_t load_value(const T* from) {
    if constexpr (kIsFloat) {
      return __float_as_uint(__ldg(from));
    } else {
      return __ldg(reinterpret_cast<const uint16_t*>(from));
    }
  }

  __device__ __forceinline__ void load_columns(Values& words, const T* row) const {
    const int filter = depth_ * kDepthFilters + warp_ * kRows, pixel = first_pixel_ + 2 * lane_;
    const int filters = g_.filters - filter;  // 16 or more: all of the warp's
    const bool first = pixel >= 0 && pixel < g_.out_width;
    const bool second = pixel + 1 >= 0 && pixel + 1 < g_.out_width;
    const T* from = row + filter * g_.y_strides.c + pixel * g_.y_strides.w;
    if (g_.source_has_vectors) {
#pragma unroll
      for (int i = 0; i < kRows; ++i, from += g_.y_strides.c) {
        const bool valid = first && i < filters;
        if constexpr (kIsFloat) {
          float2 pair{0, 0};
          if (valid) pair = __ldg(reinterpret_cast<const float2*>(from));
          words[2 * i] = __float_as_uint(pair.x), words[2 * i + 1] = __float_as_uint(pair.y);
        } else {
          words[i] = valid ? __ldg(reinterpret_cast<const uint32_t*>(from)) : 0;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i, from += g_.y_strides.c) {
        words[2 * i] = first && i < filters ? load_value(from) : 0;
        words[2 * i + 1] = second && i < filters ? load_value(from + g_.y_strides.w) : 0;
      }
    }
  }

  // The pixel of a thread's unit in the stage; lanes of a pixel are neighbours.
  __device__ __forceinline__ int find_pixel(int unit) const {
    return unit * 16 + warp_ * 4 + lane_ / 8;
  }

  __device__ __forceinline__ void load_channels(Values& words, const T* row) const {
    constexpr int kWords = kIsFloat ? 8 : 4;  // of a unit, as vectors
    const int filter = depth_ * kDepthFilters + lane_ % 8 * 8;
    const int filters = g_.filters - filter;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int pixel = first_pixel_ + find_pixel(i);
      const bool valid = pixel >= 0 && pixel < g_.out_width;
      const T* const from = row + filter * g_.y_strides.c + pixel * g_.y_strides.w;
      if (g_.source_has_vectors) {
#pragma unroll
        for (int j = 0; j < kWords; j += 4) {
          uint4 vector{0, 0, 0, 0};
          if (valid && filters > 0) vector = __ldg(reinterpret_cast<const uint4*>(from) + j / 4);
          words[i * kWords + j] = vector.x, words[i * kWords + j + 1] = vector.y;
          words[i * kWords + j + 2] = vector.z, words[i * kWords + j + 3] = vector.w;
        }
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          words[i * 8 + j] = valid && j < filters ? load_value(from + j * g_.y_strides.c) : 0;
        }
      }
    }
  }

  __device__ __forceinline__ void store(Values& values) {
    const int slot = stage_.slot;
    wait_barrier(empty_ + 8 * slot, stage_.parity ^ 1);
    uint32_t stage = stages_ + slot * kComponents * kStageBytes;
    // Unknown to the compiler, which would compute all places before the loop and spill them.
    int lane = lane_;
    asm volatile("" : "+r"(lane));
    if constexpr (kColumnsAdjacent) {
      stage += warp_ * kRows * 128;
    } else {
      stage += warp_ * 4 * 128;
    }
    if constexpr (kIsFloat) {
      store_floats(values, stage, lane);
    } else {
      if (!g_.source_has_vectors) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          values[i] = values[2 * i] | values[2 * i + 1] << 16;
        }
      }
      if constexpr (kColumnsAdjacent) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) store_word(stage + find_pair(i, lane), values[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
          const uint32_t words[4] = {values[4 * i], values[4 * i + 1], values[4 * i + 2],
                                     values[4 * i + 3]};
          store_16_bytes(stage + find_unit(i, lane), words);
        }
      }
    }
    fence_async_proxy();
    __syncwarp();
    if (lane_ == 0) arrive(full_ + 8 * slot);
    stage_.advance(g_.stages);
  }

  // Where the pair of pixels of the warp's i-th filter is, from the warp's first one on.
  static __device__ __forceinline__ uint32_t find_pair(int i, int lane) {
    return i * 128 + (lane * 4 ^ i % 8 * 16);
  }
  // Where the thread's i-th unit of filters is, from the warp's first pixel on.
  __device__ __forceinline__ uint32_t find_unit(int i, int lane) const {
    const int pixel = lane / 8;  // and 4 further in odd warps
    return (i * 16 + pixel) * 128 + ((lane % 8) ^ (warp_ % 2 * 4 + pixel)) * 16;
  }

  __device__ __forceinline__ void store_floats(const Values& words, uint32_t stage,
                                               int lane) const {
    if constexpr (kIsFloat) {
      // Columns adjacent: [pixel][filter], so that a filter's values are judged together.
      float values[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int place = kColumnsAdjacent ? i % 2 * kRows + i / 2 : i;
        values[place] = __uint_as_float(words[i]);
        if constexpr (is_half(kMath)) values[place] *= scale_;
      }
      if constexpr (is_half(kMath)) {
        if constexpr (kColumnsAdjacent) {
          check_fitness<2>(p_.scales, values, lane < 16 ? 0xffffu : 0xffff0000u);  // 32 pixels
        } else {
          check_fitness<kUnits>(p_.scales, values, 0x01010101u << (lane_ % 8));
        }
      }
      if constexpr (kColumnsAdjacent) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const OperandPair<kMath> pair(values[i], values[kRows + i]);
#pragma unroll
          for (int j = 0; j < kComponents; ++j) {
            store_word(stage + j * kStageBytes + find_pair(i, lane), pair.part[j]);
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
          const OperandWords<kMath> unit(values + 8 * i);
#pragma unroll
          for (int j = 0; j < kComponents; ++j) {
            const uint32_t part[4] = {unit.part[j].x, unit.part[j].y, unit.part[j].z,
                                      unit.part[j].w};
            store_16_bytes(stage + j * kStageBytes + find_unit(i, lane), part);
          }
        }
      }
    }
  }

  const Col2imParams& p_;
  const Col2imGeometry& g_;
  StepRange range_;
  const uint32_t full_, empty_, stages_;
  const int warp_, lane_;
  const T* source_;  // the group's first filter
  float scale_ = 1;
  int depth_ = (1 << 30), step_ = 0, last_ = 0;  // of the stage to load; none yet
  int first_pixel_ = 0;
  RingCursor stage_;  // that is stored next
};

}  // namespace convx
