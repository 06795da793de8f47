// In place of csrc's: what descriptors say is read when products are waited for, as late as the
// hardware may.
#pragma once

#include <deque>

#include "device/shared_memory.cuh"
#include "device/wgmma_descriptors.cuh"

namespace convx {

// A thread's products: groups that are committed, and the one that is being made.
struct EmulatedProducts {
  std::deque<std::vector<std::function<void()>>> groups{1};

  void wait(size_t pending) {
    while (groups.size() - 1 > pending) {
      for (const auto& product : groups.front()) product();
      groups.pop_front();
    }
  }
};
inline EmulatedProducts emulated_products[1024];

inline void fence_wgmma() {}
inline void commit_wgmma() { emulated_products[threadIdx.x].groups.emplace_back(); }
template <int kPending>
void wait_wgmma() {
  emulated_products[threadIdx.x].wait(kPending);
}

template <int kColumns>
struct WgmmaSums {
  float value[kColumns / 2];
};

// An operand with rows of 128 bytes, whose 16-byte pieces are swizzled by address.
struct EmulatedOperand {
  uint32_t start, leading, stride;

  explicit EmulatedOperand(uint64_t descriptor)
      : start((descriptor & 0x3fff) << 4),
        leading((descriptor >> 16 & 0x3fff) << 4),
        stride((descriptor >> 32 & 0x3fff) << 4) {}

  template <typename Value>
  static float read(uint32_t address) {
    return load_element<Value>(address ^ (address >> 7 & 7) << 4);
  }
  template <typename Value>
  float read_row(int row, int k) const {
    return read<Value>(start + row / 8 * stride + row % 8 * 128 + 2 * k);
  }
  template <typename Value>
  float read_column(int k, int column) const {
    return read<Value>(start + column / 64 * leading + k / 8 * stride + k % 8 * 128 +
                       column % 64 * 2);
  }
};

// The first operand in registers, the second [column][32 bytes], its halves swizzled by address.
template <typename Value, int kColumns>
struct Wgmma {
  static void multiply(WgmmaSums<kColumns>& sums, const uint32_t (&a)[4], uint64_t b_descriptor,
                       int accumulate) {
    emulated_products[threadIdx.x].groups.back().push_back(
        [&sums, &a, b_descriptor, accumulate] { add_product(sums, a, b_descriptor, accumulate); });
  }

 private:
  static void add_product(WgmmaSums<kColumns>& sums, const uint32_t (&a)[4], uint64_t b_descriptor,
                          int accumulate) {
    const EmulatedOperand b(b_descriptor);
    const emulator::Shown& all = emulator::show_in_warp(a);
    const int lane = threadIdx.x % 32;
    float rows[2][16];
    for (int k = 0; k < 16; ++k) {
      for (int upper = 0; upper < 2; ++upper) {
        const uint32_t word = all.words[lane / 4 * 4 + k % 8 / 2][k / 8 * 2 + upper];
        rows[upper][k] = Value{static_cast<uint16_t>(word >> 16 * (k % 2))};
      }
    }
    for (int i = 0; i < kColumns / 4; ++i) {
      const int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
      float totals[2] = {};
      for (int k = 0; k < 16; ++k) {
        const uint32_t address = b.start + column / 8 * b.stride + column % 8 * 32 + 2 * k;
        const float value = load_element<Value>(address ^ (address >> 7 & 1) << 4);
        for (int upper = 0; upper < 2; ++upper) totals[upper] += rows[upper][k] * value;
      }
      for (int upper = 0; upper < 2; ++upper) {
        float& sum = sums.value[i / 2 * 4 + 2 * upper + i % 2];
        sum = (accumulate ? sum : 0) + totals[upper];
      }
    }
  }
};
template <typename Value, int kColumns>
struct Wgmma<ByColumns<Value>, kColumns> {
  static void multiply(WgmmaSums<kColumns>& sums, uint64_t a_descriptor, uint64_t b_descriptor,
                       int accumulate) {
    emulated_products[threadIdx.x].groups.back().push_back(
        [&sums, a_descriptor, b_descriptor, accumulate] {
          add_product(sums, a_descriptor, b_descriptor, accumulate);
        });
  }

 private:
  static void add_product(WgmmaSums<kColumns>& sums, uint64_t a_descriptor, uint64_t b_descriptor,
                          int accumulate) {
    const EmulatedOperand a(a_descriptor), b(b_descriptor);
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    for (int upper = 0; upper < 2; ++upper) {
      float row[16];
      for (int k = 0; k < 16; ++k) {
        row[k] = a.read_row<Value>(16 * warp + lane / 4 + 8 * upper, k);
      }
      for (int i = 0; i < kColumns / 4; ++i) {
        const int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
        float& sum = sums.value[i / 2 * 4 + 2 * upper + i % 2];
        float total = accumulate ? sum : 0;
        for (int k = 0; k < 16; ++k) total += row[k] * b.read_column<Value>(k, column);
        sum = total;
      }
    }
  }
};

}  // namespace convx
