// The consumer warpgroups of the row kernel: MMAs of dY and the ring's rows of X.
//
// A warpgroup has 64 filters and up to kGroups tap groups, each an accumulator tile of kColumns
// columns. The MMAs read 16-bit dY from shared memory; float32 dY is rounded or split in registers.
// With float32 a warpgroup waits for its MMAs in every step; meanwhile the tensor cores run those
// of the other one. Split forms multiply one tap group at a time and add its accumulators to
// float32 sums in registers, because tensor cores truncate when they accumulate
// (wgrad_consumer.cuh). Narrow tiles leave registers for two sets of accumulators: the warpgroup
// adds one of them while its MMAs fill the other one, and splits the next step's dY meanwhile.
#pragma once

#include <type_traits>

#include "device/mbarrier.cuh"
#include "device/memory.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/weight_grad/rows_memory.cuh"
#include "engines/cuda/weight_grad/wgrad_element.cuh"

namespace convx {

// Float32 rows of dY as A operands in registers, for a step: [component][MMA][register].
template <OperandForm kForm>
struct RowFragments {
  static constexpr int kComponents = count_components(kForm);
  uint32_t word[kComponents][4][4];

  // Rounds or splits the values of this thread's two rows. stage: raw rows of the warpgroup.
  // scales: where a value that does not fit is reported, or null.
  __device__ __forceinline__ void load(uint32_t stage, float scale, HalfScales* scales) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t from = stage + (row + 8 * i) * gradient_pitch(4) + lane % 4 * 8;
      float values[16];
#pragma unroll
      for (int j = 0; j < 8; ++j) {  // pixels 8j + 2(lane % 4) and the next
        uint32_t pair[2];
        load_8_bytes(from + 32 * j, pair);
        values[2 * j] = __uint_as_float(pair[0]) * scale;
        values[2 * j + 1] = __uint_as_float(pair[1]) * scale;
      }
      // The four lanes that have pixels of the same row judge together.
      if (scales) check_fitness(scales, values, 0xfu << (lane / 4 * 4));
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        uint32_t words[kComponents];
        split_pair<kForm>(values[2 * j], values[2 * j + 1], words);
#pragma unroll
        for (int component = 0; component < kComponents; ++component) {
          word[component][j / 2][j % 2 * 2 + i] = words[component];
        }
      }
    }
  }
};

template <typename T, typename Value, OperandForm kForm, int kColumns, int kGroups>
class RowConsumer {
  static constexpr bool kIsSplit = count_components(kForm) > 1;
  using Mma = Wgmma<Value, kColumns>;
  using Accumulators = WgmmaSums<kColumns>;
  // The MMAs of a step run while the warpgroup waits for the next one. Operands in registers would
  // have to stay there meanwhile.
  static constexpr bool kOverlaps = sizeof(T) == 2;
  static constexpr bool kAddsDuringMmas = kIsSplit && RowTile{kColumns, kGroups}.has_two_sets();

  // What a step releases: its stage of dY, and rows of the ring.
  struct PassedStep {
    int stage, first_row, rows;
  };

 public:
  __device__ RowConsumer(const WgradGeometry& g, const WgradCall& call, const RowsMemory& memory,
                         const WgradWork& work, int warpgroup)
      : g_(g), memory_(memory), work_(work), window_(g, work.tile) {
    const int sets = (g.block_tap_groups + kGroups - 1) / kGroups;
    const RowConsumerIndex index(g, warpgroup, sets);
    filter_tile_ = index.filter_tile;
    const int first = work.tile.first_group + index.tap_set * kGroups;
    group_count_ = min(kGroups, work.tile.last_group - first);  // may be negative in the last block
    const uint32_t ring =
        memory.ring + index.channel_set * (memory.slot_bytes / g.row_tiles.channel_sets);
    const int column_bytes = g.row_tiles.set_channels() * 128;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const TapGroup& group = g.groups[min(first + i, g.group_count - 1)];
      group_row_[i] = (group.r - window_.first_r) * g.dilation_h;
      group_lower_[i] = lower_descriptor(ring + group.s * column_bytes);
    }
    scale_ = find_operand_scale<kForm, PackedSide::kGradient>(call);
    const bool checks =
        work.tile.first_group == 0 && index.channel_set == 0 &&
        work.tile.channel_tile == find_first_tile(g, work.tile.filter_tile / g.block_filter_tiles);
    checked_ = checks ? call.scales : nullptr;

    partial_ = find_partials<kColumns>(g, call, work, index, first - work.tile.first_group);
    adds_ = call.adds_to_partials;
  }

  __device__ void run() {
    // A branch around MMAs ends their group, and the compiler waits for it.
    group_count_ == kGroups ? run_groups<true>() : run_groups<false>();
  }

 private:
  // kHasAll: there are kGroups tap groups.
  template <bool kHasAll>
  __device__ __forceinline__ void run_groups() {
    Accumulators sums[kGroups];
    if constexpr (kIsSplit) {
#pragma unroll
      for (Accumulators& group : sums) {
#pragma unroll
        for (float& value : group.value) value = 0;
      }
    }
    PassedStep passed{};
    int chain = 0;  // steps since the accumulators were stored
    for (int i = 0; i < work_.stages; ++i) {
      const RowRun run(g_, work_.first_stage + i * work_.stage_step);
      if (!kIsSplit && chain > 0 && chain + run.rows > g_.flush_stages) {
        store(sums);
        chain = 0;
      }
      for (int row = 0; row < run.rows; ++row, ++chain) {
        newest_.skip(row == 0 ? window_.span : window_.advance, g_.row_tiles.ring_rows);
        multiply<kHasAll>(sums, chain > 0);
        const PassedStep step{stage_.slot, oldest_.slot,
                              row == run.rows - 1 ? window_.span : window_.advance};
        if constexpr (kOverlaps) {
          wait_wgmma<1>();
          if (row > 0) release(passed);
          passed = step;
        } else {
          release_rows(step);
        }
        oldest_.skip(step.rows, g_.row_tiles.ring_rows);
        stage_.advance(g_.stages);
      }
      // The next run's rows may need the whole ring.
      if constexpr (kOverlaps) {
        wait_wgmma<0>();
        release(passed);
      }
    }
    store(sums);
  }

  // One step.
  template <bool kHasAll>
  __device__ __forceinline__ void multiply(Accumulators (&sums)[kGroups], bool accumulates) const {
    const uint32_t stage = memory_.gradient + stage_.slot * memory_.gradient_stage_bytes +
                           filter_tile_ * kTileFilters * gradient_pitch(sizeof(T));
    wait_barrier(memory_.gradient_full + 8 * stage_.slot, stage_.parity);
    if constexpr (sizeof(T) == 2) {
      fence_async_proxy();  // cp.async wrote the operand
      wait_rows();
      fence_wgmma();
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        if (kHasAll || i < group_count_)
          issue(sums[i], lower_descriptor(stage), find_operand(i), accumulates);
      }
      commit_wgmma();
    } else {
      RowFragments<kForm> fragments;
      fragments.load(stage, scale_, checked_);
      __syncwarp();
      release_gradient(stage_.slot);
      wait_rows();
      if constexpr (kIsSplit) {
        multiply_split<kHasAll>(fragments, sums);
      } else {
        fence_wgmma();
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          if (kHasAll || i < group_count_)
            issue(sums[i], fragments.word[0], find_operand(i), accumulates);
        }
        commit_wgmma();
        wait_wgmma<0>();
      }
    }
  }

  __device__ __forceinline__ void release_gradient(int slot) const {
    if (threadIdx.x % 32 == 0) arrive(memory_.gradient_empty + 8 * slot);
  }

  // Waits for the step's newest input row; builders finish rows in order.
  __device__ __forceinline__ void wait_rows() const {
    RingCursor row = newest_;
    if (--row.slot < 0) row.slot += g_.row_tiles.ring_rows, row.parity ^= 1;
    wait_barrier(memory_.row_full + 8 * row.slot, row.parity);
  }

  // The descriptor of a tap group's operand, in the step whose first row is the oldest one.
  __device__ __forceinline__ uint32_t find_operand(int group) const {
    int slot = oldest_.slot + group_row_[group];
    if (slot >= g_.row_tiles.ring_rows) slot -= g_.row_tiles.ring_rows;
    return group_lower_[group] + slot * (memory_.slot_bytes / 16);
  }

  // Issues the four MMAs of a step. A is in registers, or described by its first row.
  template <typename Operand>
  __device__ __forceinline__ void issue(Accumulators& sums, const Operand& a, uint32_t b,
                                        bool accumulates) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint64_t columns = join_descriptor(b + 2 * k, upper_descriptor(128));
      if constexpr (std::is_same_v<Operand, uint32_t>) {
        Mma::multiply(sums, join_descriptor(a + 2 * k, upper_descriptor(128)), columns,
                      accumulates || k > 0);
      } else {
        Mma::multiply(sums, a[k], columns, accumulates || k > 0);
      }
    }
  }

  // Multiplies two fp16 components. Products with a low component are kHalfLowScale times too
  // large.
  template <bool kHasAll>
  __device__ __forceinline__ void multiply_split(const RowFragments<kForm>& fragments,
                                                 Accumulators (&sums)[kGroups]) const {
    if constexpr (kHasAll && kAddsDuringMmas) {
      multiply_pipelined(fragments, sums);
    } else {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        if (!kHasAll && i >= group_count_) continue;
        Accumulators products;
        const uint32_t operand = find_operand(i);
        issue_low(products, fragments, operand);
        wait_wgmma<0>();
#pragma unroll
        for (float& value : products.value) value *= 1 / kHalfLowScale;
        issue_high(products, fragments, operand, true);
        wait_wgmma<0>();
        add_products(sums[i], products, 1);
      }
    }
  }

  // Multiplies with one set of MMAs under way while the products of the set before are added.
  __device__ __forceinline__ void multiply_pipelined(const RowFragments<kForm>& fragments,
                                                     Accumulators (&sums)[kGroups]) const {
    Accumulators low, high;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const uint32_t operand = find_operand(i);
      issue_low(low, fragments, operand);
      if (i > 0) {
        wait_wgmma<1>();
        add_products(sums[i - 1], high, 1);
      }
      issue_high(high, fragments, operand, false);
      wait_wgmma<1>();
      add_products(sums[i], low, 1 / kHalfLowScale);
    }
    wait_wgmma<0>();
    add_products(sums[kGroups - 1], high, 1);
  }

  // Starts the MMAs with one low component.
  __device__ __forceinline__ void issue_low(Accumulators& products,
                                            const RowFragments<kForm>& fragments,
                                            uint32_t operand) const {
    fence_wgmma();
    issue(products, fragments.word[0], operand + memory_.component_bytes / 16, false);
    issue(products, fragments.word[1], operand, true);
    commit_wgmma();
  }

  // Starts the MMAs of both high components.
  __device__ __forceinline__ void issue_high(Accumulators& products,
                                             const RowFragments<kForm>& fragments, uint32_t operand,
                                             bool accumulates) const {
    fence_wgmma();
    issue(products, fragments.word[0], operand, accumulates);
    commit_wgmma();
  }

  static __device__ __forceinline__ void add_products(Accumulators& sums,
                                                      const Accumulators& products, float scale) {
#pragma unroll
    for (int j = 0; j < kColumns / 2; ++j) sums.value[j] += products.value[j] * scale;
  }

  // Releases the step's first input rows, which no later step reads.
  __device__ __forceinline__ void release_rows(const PassedStep& step) const {
    if (threadIdx.x % 32 != 0) return;
#pragma unroll 1
    for (int i = 0, slot = step.first_row; i < step.rows; ++i) {
      arrive(memory_.row_empty + 8 * slot);
      if (++slot == g_.row_tiles.ring_rows) slot = 0;
    }
  }

  __device__ __forceinline__ void release(const PassedStep& step) const {
    release_gradient(step.stage);
    release_rows(step);
  }

  // Adds the accumulators to the slice's partial sums.
  __device__ __forceinline__ void store(const Accumulators (&sums)[kGroups]) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if (i < group_count_) store_partials(sums[i], partial_ + i * kTileFilters * kColumns, adds_);
    }
    adds_ = true;
  }

  const WgradGeometry& g_;
  const RowsMemory& memory_;
  const WgradWork& work_;
  const RowWindow window_;
  int filter_tile_, group_count_;
  int group_row_[kGroups];         // the tap group's input row among those of a step
  uint32_t group_lower_[kGroups];  // its operand in slot 0
  float scale_;
  HalfScales* checked_;  // where this block reports values that do not fit, if it checks them
  float* partial_;
  bool adds_;
  RingCursor stage_;            // of raw dY
  RingCursor oldest_, newest_;  // the step's first row in the ring, and the one behind its last
};

}  // namespace convx
