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
#include "device/wgmma.cuh"
#include "engines/cuda_weight_grad/row_sums.cuh"
#include "engines/cuda_weight_grad/rows_fragments.cuh"

namespace convx {

template <typename T, typename Value, OperandForm kForm, int kColumns, int kGroups>
class RowConsumer {
  static constexpr bool kIsSplit = count_components(kForm) > 1;
  using Mma = Wgmma<Value, kColumns>;
  using Accumulators = WgmmaSums<kColumns>;
  // The MMAs of a step run while the warpgroup waits for the next one. Operands in registers would
  // have to stay there meanwhile.
  static constexpr bool kOverlaps = sizeof(T) == 2;
  static constexpr bool kAddsDuringMmas = kIsSplit && RowTile{kColumns, kGroups}.has_two_sets();
  using Fragments = RowFragments<kForm>;

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
    const int first = work.tile.first_group + index.part * kGroups;
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
    if constexpr (is_scaled(kForm)) {
      const GradientReaders readers(g, work, index, sets);
      scales_ = call.scales;
      readers_ = readers.count, steps_to_check_ = readers.index;
    }
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
    Fragments fragments;  // of float32 dY
    PassedStep passed{};
    int chain = 0;  // steps since the accumulators were stored
    for (int i = 0; i < work_.stages; ++i) {
      const RowRun run(g_, static_cast<int>(work_.first_stage) + i);
      if (!kIsSplit && chain > 0 && chain + run.rows > g_.flush_stages) {
        store(sums);
        chain = 0;
      }
      for (int row = 0; row < run.rows; ++row, ++chain) {
        newest_.skip(row == 0 ? window_.span : window_.advance, g_.row_tiles.ring_rows);
        const bool is_last = row == run.rows - 1;
        const PassedStep step{stage_.slot, oldest_.slot, is_last ? window_.span : window_.advance};
        if constexpr (sizeof(T) == 2) {
          multiply_stored<kHasAll>(sums, chain > 0);
        } else if constexpr (kHasAll && kAddsDuringMmas) {
          if (row == 0) load_fragments(fragments);
          wait_rows();
          is_last ? multiply_pipelined<false>(fragments, sums)
                  : multiply_pipelined<true>(fragments, sums);
        } else {
          load_fragments(fragments);
          wait_rows();
          multiply_loaded<kHasAll>(fragments, sums, chain > 0);
        }
        if constexpr (kOverlaps) {
          wait_wgmma<1>();
          if (row > 0) release(passed);
          passed = step;
        } else {
          release_rows(step);
        }
        oldest_.skip(step.rows, g_.row_tiles.ring_rows);
      }
      // The next run's rows may need the whole ring.
      if constexpr (kOverlaps) {
        wait_wgmma<0>();
        release(passed);
      }
    }
    store(sums);
  }

  // One step of 16-bit dY.
  template <bool kHasAll>
  __device__ __forceinline__ void multiply_stored(Accumulators (&sums)[kGroups], bool accumulates) {
    const uint32_t stage = find_gradient();
    wait_gradient();
    fence_async_proxy();  // cp.async wrote the operand
    wait_rows();
    fence_wgmma();
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if (kHasAll || i < group_count_)
        issue(sums[i], lower_descriptor(stage), find_operand(i), accumulates);
    }
    commit_wgmma();
    stage_.advance(g_.stages);
  }

  // One step of float32 dY, in one component or without a second set of accumulators.
  template <bool kHasAll>
  __device__ __forceinline__ void multiply_loaded(const Fragments& fragments,
                                                  Accumulators (&sums)[kGroups],
                                                  bool accumulates) const {
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

  // The raw rows of the stage that is read next.
  __device__ __forceinline__ uint32_t find_gradient() const {
    return memory_.gradient + stage_.slot * memory_.gradient_stage_bytes +
           filter_tile_ * kTileFilters * gradient_pitch(sizeof(T));
  }

  __device__ __forceinline__ void wait_gradient() const {
    wait_barrier(memory_.gradient_full + 8 * stage_.slot, stage_.parity);
  }

  __device__ __forceinline__ void convert(const RawRow& raw, int row, Fragments& fragments) const {
    const bool checks = is_scaled(kForm) && steps_to_check_ == 0;
    fragments.convert(raw, row, scale_, checks ? scales_ : nullptr);
  }

  // Releases the stage whose values have been converted.
  __device__ __forceinline__ void pass_stage() {
    __syncwarp();
    release_gradient(stage_.slot);
    stage_.advance(g_.stages);
    if constexpr (is_scaled(kForm)) {
      if (--steps_to_check_ < 0) steps_to_check_ = readers_ - 1;
    }
  }

  __device__ __forceinline__ void load_fragments(Fragments& fragments) {
    RawRow raw[kFragmentRows];
    wait_gradient();
#pragma unroll
    for (int row = 0; row < kFragmentRows; ++row) raw[row].load(find_gradient(), row);
#pragma unroll
    for (int row = 0; row < kFragmentRows; ++row) convert(raw[row], row, fragments);
    pass_stage();
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
  __device__ __forceinline__ void multiply_split(const Fragments& fragments,
                                                 Accumulators (&sums)[kGroups]) const {
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

  // The same of all tap groups, with one set of MMAs under way while the products of the set before
  // are added. The low components' MMAs come first: once they have ended, their fragments'
  // registers are free for the fragments of the run's next step, which are made while the other
  // MMAs run. The last step of a run must not wait for the next one (kLoadsNext is false), whose dY
  // is loaded behind input rows that may need the whole ring.
  template <bool kLoadsNext>
  __device__ __forceinline__ void multiply_pipelined(Fragments& fragments,
                                                     Accumulators (&sums)[kGroups]) {
    static_assert(kGroups == 3, "high components overlap with two rows that are converted");
    Accumulators even, odd;
    [[maybe_unused]] RawRow raw;
    [[maybe_unused]] Fragments next;
    const uint32_t operand[] = {find_operand(0), find_operand(1), find_operand(2)};
    issue_low(even, fragments, operand[0]);
    issue_low(odd, fragments, operand[1]);
    wait_wgmma<1>();
    add_products(sums[0], even, 1 / kHalfLowScale);
    issue_low(even, fragments, operand[2]);
    wait_wgmma<1>();
    add_products(sums[1], odd, 1 / kHalfLowScale);
    issue_high(odd, fragments, operand[0], false);
    wait_wgmma<1>();
    if constexpr (kLoadsNext) {
      wait_gradient();
      raw.load(find_gradient(), 0);
    }
    add_products(sums[2], even, 1 / kHalfLowScale);
    issue_high(even, fragments, operand[1], false);
    if constexpr (kLoadsNext) convert(raw, 0, next);
    wait_wgmma<1>();
    add_products(sums[0], odd, 1);
    issue_high(odd, fragments, operand[2], false);
    if constexpr (kLoadsNext) raw.load(find_gradient(), 1);
    wait_wgmma<1>();
    add_products(sums[1], even, 1);
    if constexpr (kLoadsNext) {
      convert(raw, 1, next);
      pass_stage();
    }
    wait_wgmma<0>();
    add_products(sums[2], odd, 1);
    if constexpr (kLoadsNext) fragments.copy(next, static_cast<uint32_t>(g_.stages) >> 16);
  }

  // Starts the MMAs with one low component.
  __device__ __forceinline__ void issue_low(Accumulators& products, const Fragments& fragments,
                                            uint32_t operand) const {
    fence_wgmma();
    issue(products, fragments.word[0], operand + memory_.component_bytes / 16, false);
    issue(products, fragments.word[1], operand, true);
    commit_wgmma();
  }

  // Starts the MMAs of both high components.
  __device__ __forceinline__ void issue_high(Accumulators& products, const Fragments& fragments,
                                             uint32_t operand, bool accumulates) const {
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
    static_assert(kMaxRingRows <= 64, "a lane releases two rows");
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (lane + 32 * i >= step.rows) continue;
      const int slot = step.first_row + lane + 32 * i;
      arrive(memory_.row_empty +
             8 * (slot < g_.row_tiles.ring_rows ? slot : slot - g_.row_tiles.ring_rows));
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
  // Of scaled forms: where values that do not fit are reported, the warpgroups that read the same
  // dY, and the number of steps before this one checks a step again.
  HalfScales* scales_;
  int readers_, steps_to_check_;
  float* partial_;
  bool adds_;
  RingCursor stage_;            // of raw dY
  RingCursor oldest_, newest_;  // the step's first row in the ring, and the one behind its last
};

}  // namespace convx
