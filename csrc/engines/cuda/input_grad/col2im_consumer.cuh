// The consumer warpgroup of a worker: MMAs, col2im, and stores of dX.
//
// A step multiplies a row of dY by all filters, writes the accumulators T to shared memory, and
// adds each unit's taps to the ring of dX rows. The order of all additions depends on the problem
// alone: kernel columns first, then rows of dY. While one worker does that, the tensor cores run
// the other worker's MMAs.
//
// Accumulation. Split forms, which must be as exact as float32, empty the accumulators into a
// second set after every stage, because tensor cores truncate when they accumulate.
//
// Infinities and NaN. A value of T belongs to one pixel of dY and one tap, so that nothing is
// multiplied that the definition does not have, except at pixels outside of dY: their T is replaced
// by zeros. Split operands turn infinities into NaN; such elements of dX are computed again.
#pragma once

#include <type_traits>

#include "device/vectors.cuh"
#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/input_grad/col2im_memory.cuh"
#include "kernels/finish.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

// An element of dX by its definition, in float32. channel: of the group.
static __device__ __noinline__ float recompute_gradient(const Col2imParams& p, int group,
                                                        int channel, int image, int row,
                                                        int column) {
  const Col2imGeometry& g = p.g;
  const float* const source = static_cast<const float*>(p.source) + image * g.y_strides.n +
                              int64_t{group} * g.filters * g.y_strides.c;
  const float* const filters =
      static_cast<const float*>(p.filters) + group * p.filter_group + channel * p.filter_target;
  float sum = 0;
  for (int r = 0; r < g.kernel_rows; ++r) {
    const int above = row + g.pad_top - r * g.dilation_h;
    if (above < 0 || above % g.stride_h != 0 || above / g.stride_h >= g.out_height) continue;
    for (int s = 0; s < g.kernel_columns; ++s) {
      const int before = column + g.pad_left - s * g.dilation_w;
      if (before < 0 || before % g.stride_w != 0 || before / g.stride_w >= g.out_width) continue;
      const float* const from =
          source + above / g.stride_h * g.y_strides.h + before / g.stride_w * g.y_strides.w;
      const float* const weight = filters + r * p.filter_r + s * p.filter_s;
      for (int k = 0; k < g.filters; ++k) {
        sum = fmaf(from[k * g.y_strides.c], weight[k * p.filter_source], sum);
      }
    }
  }
  return sum;
}

template <TensorMath kMath, int kColumns, bool kColumnsAdjacent>
class Col2imConsumer {
  using T = typename TensorTypes<kMath>::Element;
  using Value = typename TensorTypes<kMath>::Operand;
  using Operands = std::conditional_t<kColumnsAdjacent, MnMajor<Value>, ByColumns<Value>>;
  using Mma = Wgmma<Operands, kColumns>;
  using Accumulators = WgmmaSums<kColumns>;
  static constexpr int kComponents = count_planes(kMath);
  static constexpr uint32_t kComponentUnits = kStageBytes / 16;  // descriptors count 16 bytes

 public:
  __device__ Col2imConsumer(const Col2imParams& p, const Col2imMemory& memory,
                            const ChannelTile& tile, int worker)
      : p_(p),
        g_(p.g),
        tile_(tile),
        range_(p.g, p.images, tile.range * kWorkers + worker),
        barrier_(1 + worker),
        thread_(static_cast<int>(threadIdx.x) % 128),
        full_(memory.full + 8 * worker * kMaxStages),
        empty_(memory.empty + 8 * worker * kMaxStages),
        results_(memory.results + worker * kStripPixels * p.g.pitch * 4),
        ring_(memory.ring + worker * p.g.ring_bytes()),
        places_(memory.places),
        factors_(memory.factors) {
    const uint32_t source = memory.source + worker * g_.stages * kComponents * kStageBytes;
    source_lower_ = kColumnsAdjacent ? source / 16 : lower_descriptor(source);
    filters_lower_ = lower_columns_descriptor(memory.filters, g_.atom_bytes());
    row_bytes_ = g_.units * g_.vector * 4;
  }

  __device__ void run() {
    while (range_.advance()) {
      clear_ring();
      // The steps from first - halo_steps on add to rows that are stored.
      for (int step = range_.first - g_.halo_steps; step < range_.last; ++step) {
        const bool has_row = step >= 0 && step < g_.out_height;
        if (has_row) add_row(step);
        if (!has_row || !g_.merges_rows()) {
          if (g_.vector == 4) {
            finish_rows<4>(step);
          } else {
            finish_rows<1>(step);
          }
        }
        first_row_ += g_.stride_h;
        if (first_row_ >= g_.ring_rows) first_row_ -= g_.ring_rows;
      }
    }
  }

 private:
  __device__ __forceinline__ void add_row(int step) {
    for (int chunk = 0; chunk < g_.chunks; ++chunk) {
      {
        Accumulators accumulators;
        multiply(accumulators, chunk);
        wait_at_barrier(barrier_, 128);  // until T has been read
        store_results(accumulators);
      }
      wait_at_barrier(barrier_, 128);
      const int first = chunk * g_.chunk_rows;
      const int rows = min(g_.chunk_rows, g_.kernel_rows - first);
      if (g_.vector == 4) {
        if (g_.taps == 3 && rows == 3) {
          add_taps<4, 3, 3>(step, first, rows);
        } else if (g_.taps == 3) {
          add_taps<4, 3, 1>(step, first, rows);
        } else {
          add_taps<4, 0, 1>(step, first, rows);
        }
      } else if (g_.taps == 3 || g_.taps == 4) {
        add_taps<1, 4, 1>(step, first, rows);
      } else {
        add_taps<1, 0, 1>(step, first, rows);
      }
    }
  }

  // MMAs of a row of dY and a chunk of columns. The last chunk releases the stages.
  __device__ __forceinline__ void multiply(Accumulators& sums, int chunk) {
    const bool releases = chunk == g_.chunks - 1;
    const uint32_t filters =
        filters_lower_ + static_cast<uint32_t>(chunk * g_.atoms * (g_.atom_bytes() / 16));
    RingCursor stage = stage_;
    if constexpr (kComponents == 1) {
      int previous = 0;
      for (int i = 0; i < g_.depth_chunks; ++i) {
        wait_barrier(full_ + 8 * stage.slot, stage.parity);
        fence_wgmma();
        issue(sums, stage.slot, filters, i, 0, 0, i > 0);
        commit_wgmma();
        wait_wgmma<1>();
        if (releases && i > 0) release(previous);
        previous = stage.slot;
        stage.advance(g_.stages);
      }
      wait_wgmma<0>();
      if (releases) release(previous);
    } else {
#pragma unroll
      for (float& value : sums.value) value = 0;
      for (int i = 0; i < g_.depth_chunks; ++i) {
        wait_barrier(full_ + 8 * stage.slot, stage.parity);
        add_split_products(sums, stage.slot, filters, i);
        if (releases) release(stage.slot);
        stage.advance(g_.stages);
      }
    }
    if (releases) stage_ = stage;
  }

  // Issues the MMAs of a stage for components (a, b), without waiting for them.
  __device__ __forceinline__ void issue(Accumulators& sums, int slot, uint32_t filters, int depth,
                                        int a, int b, bool accumulates) const {
    const uint32_t from = source_lower_ + (slot * kComponents + a) * kComponentUnits;
    const uint32_t to = filters + b * static_cast<uint32_t>(g_.component_bytes() / 16) +
                        depth * (kDepthFilters * kAtomColumns * 2 / 16);
    constexpr uint32_t kStep = kColumnsAdjacent ? 16 * 128 / 16 : 2;  // 16 filters
#pragma unroll
    for (int k = 0; k < kDepthFilters / 16; ++k) {
      Mma::multiply(sums, join_descriptor(from + k * kStep, upper_descriptor(128)),
                    join_descriptor(to + k * (16 * kAtomColumns * 2 / 16),
                                    upper_descriptor(kAtomColumns * 2)),
                    accumulates || k > 0);
    }
  }

  // The products of components, the smallest first.
  __device__ __forceinline__ void add_split_products(Accumulators& sums, int slot, uint32_t filters,
                                                     int depth) const {
    Accumulators products;
    fence_wgmma();
    if constexpr (kComponents == 3) {
      issue(products, slot, filters, depth, 0, 2, false);
      issue(products, slot, filters, depth, 1, 1, true);
      issue(products, slot, filters, depth, 2, 0, true);
    }
    issue(products, slot, filters, depth, 0, 1, kComponents == 3);
    issue(products, slot, filters, depth, 1, 0, true);
    if constexpr (is_half(kMath)) {  // low components are kHalfLowScale times as large
      commit_wgmma();
      wait_wgmma<0>();
#pragma unroll
      for (float& value : products.value) value *= 1 / kHalfLowScale;
      fence_wgmma();
    }
    issue(products, slot, filters, depth, 0, 0, true);
    commit_wgmma();
    wait_wgmma<0>();
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) sums.value[i] += products.value[i];
  }

  __device__ void release(int slot) const {
    if (threadIdx.x % 32 == 0) arrive(empty_ + 8 * slot);
  }

  // Writes T. Pixels outside of dY have zeros, because 0 * Inf is NaN.
  __device__ __forceinline__ void store_results(const Accumulators& sums) const {
    const int row = thread_ / 32 * 16 + thread_ % 32 / 4;
    const int pixel = range_.first_pixel() + row;
    const bool first = pixel >= 0 && pixel < g_.out_width;
    const bool second = pixel + 8 >= 0 && pixel + 8 < g_.out_width;
    const uint32_t upper = results_ + 4 * (row * g_.pitch + thread_ % 4 * 2);
    const uint32_t lower = upper + 4 * 8 * g_.pitch;
    if (__all_sync(0xffffffff, first && second)) {
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        if (8 * i >= g_.chunk_columns) break;
        store_pair(upper + 32 * i, sums.value[4 * i], sums.value[4 * i + 1]);
        store_pair(lower + 32 * i, sums.value[4 * i + 2], sums.value[4 * i + 3]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        if (8 * i >= g_.chunk_columns) break;
        store_pair(upper + 32 * i, first ? sums.value[4 * i] : 0,
                   first ? sums.value[4 * i + 1] : 0);
        store_pair(lower + 32 * i, second ? sums.value[4 * i + 2] : 0,
                   second ? sums.value[4 * i + 3] : 0);
      }
    }
  }

  template <int kVector>
  static __device__ __forceinline__ void load_vector(uint32_t address, float (&values)[kVector]) {
    if constexpr (kVector == 4) {
      uint32_t words[4];
      load_16_bytes(address, words);
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] = __uint_as_float(words[i]);
    } else {
      values[0] = load_element<float>(address);
    }
  }
  template <int kVector>
  static __device__ __forceinline__ void store_vector(uint32_t address,
                                                      const float (&values)[kVector]) {
    if constexpr (kVector == 4) {
      const uint32_t words[4] = {__float_as_uint(values[0]), __float_as_uint(values[1]),
                                 __float_as_uint(values[2]), __float_as_uint(values[3])};
      store_16_bytes(address, words);
    } else {
      store_element(address, values[0]);
    }
  }

  __device__ __forceinline__ UnitPlace find_place(int unit) const {
    uint32_t words[4];
    load_16_bytes(places_ + 16 * unit, words);
    return {static_cast<uint16_t>(words[0]), static_cast<uint16_t>(words[0] >> 16),
            static_cast<int>(words[1]), static_cast<int>(words[2]), static_cast<int>(words[3])};
  }

  __device__ __forceinline__ void clear_ring() const {
    const int rows = g_.ring_rows;
    for (int unit = thread_; unit < g_.units; unit += 128) {
      uint32_t address = ring_ + 4 * g_.vector * unit;
      for (int row = 0; row < rows; ++row, address += row_bytes_) {
        for (int i = 0; i < g_.vector; ++i) store_element(address + 4 * i, 0.f);
      }
    }
  }

  // Adds the taps of so many kernel rows, kRows at a time, which divides their number. kTaps: the
  // most that a unit has; 0: known at run time. If rows are merged, the last kernel row replaces
  // what the ring holds, and the sums of the first one are stored.
  template <int kVector, int kTaps, int kRows>
  __device__ __forceinline__ void add_taps(int step, int first, int rows) const {
    const int kernel_row_bytes = 4 * g_.kernel_columns * g_.tile_channels;
    const int replaced = g_.merges_rows() ? g_.kernel_rows - 1 - first : -1;
    const int finished = g_.merges_rows() ? -first : -1;
    const TargetRow target(*this, step, 0);
    int first_slot = first_row_ + first * g_.dilation_h;
    if (first_slot >= g_.ring_rows) first_slot -= g_.ring_rows;
    for (int unit = thread_; unit < g_.units; unit += 128) {
      const UnitPlace place = find_place(unit);
      uint32_t from = results_ + 4 * place.offset;
      int slot = first_slot;
      for (int row = 0; row < rows; row += kRows, from += kRows * kernel_row_bytes) {
        uint32_t to[kRows];
        float sums[kRows][kVector] = {};
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          to[i] = ring_ + 4 * kVector * unit + slot * row_bytes_;
          if (row + i != replaced) load_vector(to[i], sums[i]);
          slot += g_.dilation_h;
          if (slot >= g_.ring_rows) slot -= g_.ring_rows;
        }
        add_columns<kTaps>(from, kernel_row_bytes, place.taps, sums);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          if (row + i == finished) {
            store_unit(target, place, sums[i]);
          } else {
            store_vector(to[i], sums[i]);
          }
        }
      }
    }
  }

  // Adds the taps of kRows kernel rows to their sums: all loads before the first sum.
  template <int kTaps, int kRows, int kVector>
  __device__ __forceinline__ void add_columns(uint32_t from, int kernel_row_bytes, int taps,
                                              float (&sums)[kRows][kVector]) const {
    const int tap_bytes = 4 * g_.tap_words;
    if constexpr (kTaps > 0) {
      float values[kRows][kTaps][kVector] = {};
#pragma unroll
      for (int row = 0; row < kRows; ++row, from += kernel_row_bytes) {
#pragma unroll
        for (int i = 0; i < kTaps; ++i) {
          if (i < taps) load_vector(from + i * tap_bytes, values[row][i]);
        }
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int i = 0; i < kTaps; ++i) {
#pragma unroll
          for (int j = 0; j < kVector; ++j) sums[row][j] += values[row][i][j];
        }
      }
    } else {
      static_assert(kRows == 1);
#pragma unroll 4
      for (int i = 0; i < taps; ++i, from += tap_bytes) {
        float values[kVector];
        load_vector(from, values);
#pragma unroll
        for (int j = 0; j < kVector; ++j) sums[0][j] += values[j];
      }
    }
  }

  // The i-th row of dX that a step completes.
  struct TargetRow {
    int row, first_column;
    int64_t start;  // offset of the strip's first column and the tile's first channel
    bool is_stored;

    __device__ __forceinline__ TargetRow(const Col2imConsumer& of, int step, int i) {
      const Col2imGeometry& g = of.g_;
      row = step * g.stride_h + i - g.pad_top;
      first_column = (g.first_point + of.range_.strip * g.strip_points) * g.stride_w - g.pad_left;
      start = of.range_.image * g.x_strides.n + row * g.x_strides.h + first_column * g.x_strides.w +
              (int64_t{of.tile_.group} * g.channels + of.tile_.channel) * g.x_strides.c;
      // An earlier segment stores the rows before this one's.
      is_stored = step >= of.range_.first && row >= 0 && row < g.height;
    }
  };

  template <int kVector>
  __device__ __forceinline__ void store_unit(const TargetRow& target, const UnitPlace& place,
                                             float (&sums)[kVector]) const {
    const int column = target.first_column + place.column;
    if (target.is_stored && column >= 0 && column < g_.width) {
      store_elements(sums, target.start + place.target, place.channel, target.row, column);
    }
  }

  // Stores the rows of dX that the step has completed, and clears the ring's rows that the next
  // steps will not replace.
  template <int kVector>
  __device__ __forceinline__ void finish_rows(int step) const {
    for (int i = 0; i < g_.stride_h; ++i) {
      const TargetRow target(*this, step, i);
      int slot = first_row_ + i;
      if (slot >= g_.ring_rows) slot -= g_.ring_rows;
      // Merged rows: a step without a row of dY has not replaced the newest row.
      int cleared = slot;
      if (g_.merges_rows() && --cleared < 0) cleared += g_.ring_rows;
      for (int unit = thread_; unit < g_.units; unit += 128) {
        const uint32_t cell = ring_ + 4 * kVector * unit;
        float sums[kVector];
        load_vector(cell + slot * row_bytes_, sums);
        const float zeros[kVector] = {};
        store_vector(cell + cleared * row_bytes_, zeros);
        store_unit(target, find_place(unit), sums);
      }
    }
  }

  // Stores channels of a pixel of dX, the first one at this offset.
  template <int kVector>
  __device__ __forceinline__ void store_elements(float (&sums)[kVector], int64_t offset,
                                                 int channel, int row, int column) const {
    const int count = min(kVector, g_.channels - tile_.channel - channel);
    if constexpr (is_half(kMath)) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        uint32_t factor[2];
        load_8_bytes(factors_ + 8 * (channel + i), factor);
        sums[i] = sums[i] * __uint_as_float(factor[0]) * __uint_as_float(factor[1]);
      }
    } else if constexpr (kMath == TensorMath::kIeee) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sums[i] *= kSplitUnscale;
        if (is_not_finite(sums[i]) && i < count) {
          sums[i] = recompute_gradient(p_, tile_.group, tile_.channel + channel + i, range_.image,
                                       row, column);
        }
      }
    }
    T* const to = static_cast<T*>(p_.target) + offset;
    if constexpr (kVector == 4) {
      if (g_.target_has_vectors && count == 4) {
        if constexpr (sizeof(T) == 4) {
          *reinterpret_cast<float4*>(to) = float4{sums[0], sums[1], sums[2], sums[3]};
        } else {
          *reinterpret_cast<uint2*>(to) = uint2{narrow(sums, 0, T{}), narrow(sums, 2, T{})};
        }
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i < count) to[i * g_.x_strides.c] = round_to<T>(sums[i]);
    }
  }

  const Col2imParams& p_;
  const Col2imGeometry& g_;
  const ChannelTile& tile_;
  StepRange range_;
  const int barrier_, thread_;
  const uint32_t full_, empty_, results_, ring_, places_, factors_;
  uint32_t source_lower_, filters_lower_;
  int row_bytes_;      // of a row in the ring
  int first_row_ = 0;  // the step's first row in the ring
  RingCursor stage_;
};

}  // namespace convx
