// Writes dW from the MMA kernel, where the slices of a tile are the blocks of a cluster.
//
// Every block stages its accumulators in its own shared memory, over the operands:
//
//              atom 0      4  atom 1      4  atom 2
//            +-----------+--+-----------+--+-----------+----+
//   64 rows  | channels  |  | channels  |  | channels  |    |  float32, staged_row values,
//   (filters)|           |  |           |  |           |    |  one such matrix per consumer
//            +-----------+--+-----------+--+-----------+----+
//
// Blocks of several channel sets (row_boxes_kernel.cuh) have the matrices of each set behind those
// of the set before.
//
// Then it takes its share of the tile's filters, adds the values of all blocks in the order of
// slices, and writes elements in dW's order. A table, built while the first stages are on their
// way, says for each element of a row where it is staged and where in dW it goes.
//
// Banks: rows are 8 more than a multiple of 16 values, so that the four rows of a half warp that
// store accumulators are in different banks; atoms are 4 values further apart than they are wide,
// so that neighbouring taps of a channel are, too.
#pragma once

#include "device/cluster.cuh"
#include "device/memory.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/weight_grad/wgrad_element.cuh"
#include "engines/cuda/weight_grad/wgrad_work.cuh"
#include "kernels/half_scales.cuh"

namespace convx {

// Where a column of a consumer's tile is in a staged row.
__device__ __forceinline__ int find_staged_column(int atom_bits, int column) {
  return column + (column >> atom_bits) * kStagedAtomGap;
}

// Stores a warpgroup's accumulators in shared memory. thread: of all threads whose accumulators are
// staged, 128 for each matrix.
template <int kColumns>
__device__ __forceinline__ void stage_sums(const WgradGeometry& g, const StoreMemory& memory,
                                           const WgmmaSums<kColumns>& sums, int thread) {
  // Unknown to the compiler, which would compute all places before the loop and spill them.
  int atom_bits = g.atom_bits;
  asm volatile("" : "+r"(thread), "+r"(atom_bits));
  const int row = thread / 32 * 16 + thread % 32 / 4;  // 64 per warpgroup
  const uint32_t first = memory.staged + 4 * (row * g.staged_row + thread % 4 * 2);
  const uint32_t second = first + 4 * 8 * g.staged_row;
#pragma unroll
  for (int i = 0; i < kColumns / 8; ++i) {
    const int place = 4 * find_staged_column(atom_bits, i * 8);
    const auto store = [&](uint32_t row_address, int value) {
      store_pair(row_address + place, sums.value[value], sums.value[value + 1]);
    };
    store(first, 4 * i);
    store(second, 4 * i + 2);
  }
}

// One element of each filter of a tile.
struct StoredElement {
  uint32_t packed;  // staged place in the lower 16 bits, then 9 of the column, and the tap
  int offset;       // in dW, from the tile's first channel on

  __device__ __forceinline__ int place() const { return static_cast<int>(packed & 0xffff); }
  __device__ __forceinline__ int column() const { return static_cast<int>(packed >> 16 & 0x1ff); }
  __device__ __forceinline__ int tap() const { return static_cast<int>(packed >> 25); }
};
static_assert(3 * kTileFilters * (192 + 12 * kStagedAtomGap + 8) <= 0x10000 &&
                  2 * kTileFilters * (256 + 16 * kStagedAtomGap + 8) <= 0x10000,
              "places of the widest tiles of narrow atoms have 16 bits");

template <OperandForm kForm>
class ResultStore {
  using T = element_t<kForm>;
  static constexpr int kBatchRows = 4;  // filters that a lane loads at once, and
  static constexpr int kBatchSlices = 4;

 public:
  __device__ ResultStore(const WgradGeometry& g, const WgradCall& call, const StoreMemory& memory,
                         const WgradWork& work)
      : g_(g), call_(call), memory_(memory), work_(work) {
    for (int i = work.tile.first_group; i < work.tile.last_group; ++i) taps_ += g.groups[i].taps;
    take_set(0);
    first_filter_ = work.tile.filter_tile * kTileFilters;
    const int rows = min(g.block_filter_tiles * kTileFilters, g.filters - first_filter_);
    first_row_ = rows * work.slice / g.slices;
    end_row_ = rows * (work.slice + 1) / g.slices;
  }

  // Builds the table, by so many threads.
  __device__ __forceinline__ void list_elements(int thread, int threads) const {
    const bool taps_are_inner = !g_.folds_columns && g_.w_strides.c != 1;
    const bool has_all_taps = taps_ == g_.kernel_rows * g_.kernel_columns;
    for (int i = thread; i < taps_ * columns_; i += threads) {
      const int tap = i / columns_, column = i - tap * columns_;
      const Tap at = find_tap(tap);
      const int of_consumer =
          column + (g_.atom_axis == AtomAxis::kChannels ? 0 : at.atom << g_.atom_bits);
      const int place = at.consumer * kTileFilters * g_.staged_row +
                        find_staged_column(g_.atom_bits, of_consumer);
      int channel = column, s = at.s;
      if (g_.folds_columns) {
        s = first_column_ + column;
        channel = g_.by_group_channels.split(s);
      }
      const auto offset =
          static_cast<int>(channel * g_.w_strides.c + at.r * g_.w_strides.h + s * g_.w_strides.w);
      const int rank = has_all_taps ? at.r * g_.kernel_columns + at.s : tap;
      const int to = taps_are_inner ? column * taps_ + rank : i;
      const auto packed = static_cast<uint32_t>(place | column << 16) | static_cast<uint32_t>(tap)
                                                                            << 25;
      store_8_bytes(memory_.table + 8 * to, packed, static_cast<uint32_t>(offset));
    }
  }

  // All consumers call it once their accumulators are staged. threads: how many they are.
  __device__ __forceinline__ void run(int threads) const {
    sync_blocks();
    const bool is_wrong = store_rows(threads / 32);
    sync_blocks();  // others read what this block staged until then
    // Nobody needs the sums where a converter has found values that do not fit.
    if (__syncthreads_or(is_wrong && !must_return(call_))) recompute_rows(threads);
  }

  // Stores the result of a block of several channel sets, which has a single tap.
  __device__ __forceinline__ void run_sets(int threads) {
    bool is_wrong = false;
    sync_blocks();
    for (int set = 0; set < g_.row_tiles.channel_sets; ++set) {
      take_set(set);
      is_wrong |= store_rows(threads / 32);
    }
    sync_blocks();
    if (!__syncthreads_or(is_wrong)) return;
    for (int set = 0; set < g_.row_tiles.channel_sets; ++set) {
      take_set(set);
      recompute_rows(threads);
    }
  }

 private:
  // Chooses one of the block's channel sets, whose matrices are staged behind those of the sets
  // before. The table of the first one serves all.
  __device__ __forceinline__ void take_set(int set) {
    const int width = g_.atom_axis == AtomAxis::kChannels ? g_.columns : g_.atom_channels;
    first_column_ = work_.tile.channel_tile * g_.atom_channels + set * width;
    columns_ = min(width, g_.packed_channels - first_column_);
    set_offset_ = static_cast<uint32_t>(4 * set * g_.consumers() * kTileFilters * g_.staged_row);
  }

  struct Tap {
    int r, s, atom, consumer;
  };

  // tap: of the tile's.
  __device__ __forceinline__ Tap find_tap(int tap) const {
    int group = work_.tile.first_group;
    while (tap >= g_.groups[group].taps) tap -= g_.groups[group++].taps;
    return {g_.groups[group].r + tap * g_.atom_r, g_.groups[group].s + tap * g_.atom_s, tap,
            group - work_.tile.first_group};
  }

  __device__ __forceinline__ void sync_blocks() const {
    if (g_.slices > 1) {
      sync_cluster();
    } else {
      __syncthreads();
    }
  }

  __device__ __forceinline__ StoredElement load_element_of_row(int index) const {
    uint32_t words[2];
    load_8_bytes(memory_.table + 8 * index, words);
    return {words[0], static_cast<int>(words[1])};
  }

  __device__ __forceinline__ bool is_grouped() const { return g_.group_filters < g_.filters; }

  // Whether the filter's group has this column of the tile.
  __device__ __forceinline__ bool has_column(int row, int column) const {
    if (!is_grouped()) return true;
    const int begin =
        g_.by_group_filters.divide(first_filter_ + row) * g_.group_channels - first_column_;
    return column >= begin && column < begin + g_.group_channels;
  }

  // Where in dW the filter's elements are, from the tile's first channel on.
  __device__ __forceinline__ T* find_row(int row) const {
    const int filter = first_filter_ + row;
    int64_t offset = filter * g_.w_strides.n;
    if (!g_.folds_columns) {
      const int first = g_.by_group_filters.divide(filter) * g_.group_channels;
      offset += (first_column_ - first) * g_.w_strides.c;
    }
    return static_cast<T*>(call_.w) + offset;
  }

  // In bytes from the first staged value on.
  __device__ __forceinline__ uint32_t find_staged_row(int row) const {
    const int tile = row / kTileFilters;
    const int matrix_row = tile * (g_.block_tap_groups - 1) * kTileFilters + row;
    return set_offset_ + static_cast<uint32_t>(4 * matrix_row * g_.staged_row);
  }

  // Adds the blocks' values of kBatchRows filters, in the order of slices.
  __device__ __forceinline__ void add_slices(const uint32_t (&staged)[kBatchRows],
                                             float (&sums)[kBatchRows]) const {
    if (g_.slices == 1) {
#pragma unroll
      for (int i = 0; i < kBatchRows; ++i) {
        sums[i] = load_element<float>(memory_.staged + staged[i]);
      }
      return;
    }
#pragma unroll
    for (float& sum : sums) sum = 0;
#pragma unroll 1
    for (int first = 0; first < g_.slices; first += kBatchSlices) {
      float values[kBatchSlices][kBatchRows];
#pragma unroll
      for (int j = 0; j < kBatchSlices; ++j) {
        const bool is_slice = first + j < g_.slices;
        const uint32_t from = find_in_block(memory_.staged, is_slice ? first + j : 0);
#pragma unroll
        for (int i = 0; i < kBatchRows; ++i) {
          values[j][i] = is_slice ? load_from_cluster(from + staged[i]) : 0;
        }
      }
#pragma unroll
      for (int j = 0; j < kBatchSlices; ++j) {
#pragma unroll
        for (int i = 0; i < kBatchRows; ++i) sums[i] += values[j][i];
      }
    }
  }

  // Writes the block's share of the filters: a warp takes kBatchRows of them and 32 elements of
  // each at a time. Returns whether a sum was not finite.
  __device__ __forceinline__ bool store_rows(int warps) const {
    const SumFinisher<kForm> finisher(call_);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int elements = taps_ * columns_, chunks = (elements + 31) / 32;
    bool is_wrong = false;
    int row = first_row_, chunk = static_cast<int>(threadIdx.x) / 32;
    for (;; chunk += warps) {
      for (; chunk >= chunks; chunk -= chunks) row += kBatchRows;
      if (row >= end_row_) break;
      const int index = chunk * 32 + lane;
      if (index >= elements) continue;
      const StoredElement element = load_element_of_row(index);
      uint32_t staged[kBatchRows];
#pragma unroll
      for (int i = 0; i < kBatchRows; ++i) {
        staged[i] = find_staged_row(min(row + i, end_row_ - 1)) + 4 * element.place();
      }
      float sums[kBatchRows];
      add_slices(staged, sums);
      T* const to = find_row(row) + element.offset;
#pragma unroll
      for (int i = 0; i < kBatchRows; ++i) {
        if (row + i >= end_row_) break;
        if (!is_grouped()) {
          to[i * g_.w_strides.n] = finisher.finish(sums[i], is_wrong);
        } else if (has_column(row + i, element.column())) {
          find_row(row + i)[element.offset] = finisher.finish(sums[i], is_wrong);
        }
      }
    }
    return is_wrong;
  }

  // Computes elements that are not finite by the definition.
  __device__ __forceinline__ void recompute_rows(int threads) const {
    const int thread = static_cast<int>(threadIdx.x);
    // Over staged values, which nobody reads any more.
    auto* const shares = reinterpret_cast<double*>(memory_.staged_pointer);
    const uint32_t masks = memory_.staged + 8 * threads;
    for (int row = first_row_; row < end_row_; ++row) {
      for (int first = 0; first < taps_ * columns_; first += threads) {
        bool is_wrong = false;
        if (first + thread < taps_ * columns_) {
          const StoredElement element = load_element_of_row(first + thread);
          is_wrong = has_column(row, element.column()) &&
                     !(fabsf(to_accumulate(find_row(row)[element.offset])) <= kLargestFinite);
        }
        const uint32_t mask = __ballot_sync(0xffffffff, is_wrong);
        if (thread % 32 == 0) store_word(masks + thread / 32 * 4, mask);
        if (!__syncthreads_or(is_wrong)) continue;
        for (int i = 0; i < threads; ++i) {
          if ((load_word(masks + i / 32 * 4) >> i % 32 & 1) == 0) continue;
          const StoredElement element = load_element_of_row(first + i);
          const Tap at = find_tap(element.tap());
          const int tap = g_.folds_columns ? at.r : at.r * g_.kernel_columns + at.s;
          WgradElement(g_, first_filter_ + row, first_column_ + element.column(), tap)
              .template recompute<T>(g_, call_, shares, threads);
        }
        __syncthreads();  // before the masks are written again
      }
    }
  }

  const WgradGeometry& g_;
  const WgradCall& call_;
  const StoreMemory& memory_;
  const WgradWork& work_;
  int taps_ = 0;
  int first_column_, columns_;  // of a packed row; those of the tile
  uint32_t set_offset_;         // of the channel set's matrices, in bytes
  int first_filter_;            // of the tile
  int first_row_, end_row_;     // this block's share of the tile's filters
};

}  // namespace convx
