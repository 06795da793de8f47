// In place of csrc's: what descriptors say is read when products are waited for, as late as the
// hardware may.
#pragma once

#include <deque>
#include <vector>

#include "device/memory.cuh"
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
  emulator::warp_barrier().wait(32);  // no lane goes on before the others
}

template <int kColumns>
struct WgmmaSums {
  float value[kColumns / 2];
};

// Values as the tensor cores read them.
template <typename Value>
struct EmulatedValue {
  using Bits = uint16_t;
  [[gnu::always_inline]] static float decode(Bits bits) { return Value{bits}; }
};
template <>
struct EmulatedValue<Half> {
  using Bits = uint16_t;
  static float decode(Bits bits) { return kValues[bits]; }

  static inline const std::vector<float> kValues = [] {
    std::vector<float> values(1 << 16);
    for (size_t i = 0; i < values.size(); ++i) values[i] = Half{static_cast<Bits>(i)};
    return values;
  }();
};
template <>
struct EmulatedValue<Tf32> {
  using Bits = uint32_t;
  static float decode(Bits bits) { return bits_to_float(bits & 0xffffe000u); }
};
// Of a product.
template <typename Value>
inline constexpr int kEmulatedDepth = 32 / sizeof(typename EmulatedValue<Value>::Bits);

// Most of the time of a test is spent from here on.
#pragma GCC push_options
#pragma GCC optimize("O3")

// An operand whose 16-byte pieces are swizzled by address.
struct EmulatedOperand {
  uint32_t start, leading, stride, row_bytes;

  explicit EmulatedOperand(uint64_t descriptor)
      : start((emulator::cluster_rank << emulator::kRankBit) + ((descriptor & 0x3fff) << 4)),
        leading((descriptor >> 16 & 0x3fff) << 4),
        stride((descriptor >> 32 & 0x3fff) << 4),
        row_bytes(256 >> (descriptor >> 62)) {}

  uint32_t swizzle(uint32_t address) const {
    return address ^ (address >> 7 & (row_bytes / 16 - 1)) << 4;
  }

  // 32 bytes of a row (of A) or of a column (of B).
  template <typename Value>
  void read_row(int row, float* values) const {
    using Bits = typename EmulatedValue<Value>::Bits;
    constexpr int kPiece = 16 / sizeof(Bits);
    for (uint32_t piece = 0; piece < 2; ++piece) {
      const uint32_t address = start + row / 8 * stride + row % 8 * row_bytes + piece * 16;
      Bits bits[kPiece];
      std::memcpy(bits, shared_pointer<Bits>(swizzle(address), 16), 16);
      for (const Bits& value : bits) *values++ = EmulatedValue<Value>::decode(value);
    }
  }
  // 16 values of a column (of B) or a row (of A), of operands whose columns or rows lie side by
  // side (MN-major).
  template <typename Value>
  void read_column(int column, float* values) const {
    const int atom = static_cast<int>(row_bytes) / 2;
    for (int k = 0; k < 16; ++k) {
      const uint32_t address = start + column / atom * leading + k / 8 * stride +
                               k % 8 * row_bytes + column % atom * 2;
      values[k] = load_element<Value>(swizzle(address));
    }
  }
};

// Value: of both operands. kByColumns: columns of b lie side by side. kByRows: so do rows of a.
template <typename Value, int kColumns, bool kByColumns = false, bool kByRows = false>
class EmulatedWgmma {
  static constexpr int kDepth = kEmulatedDepth<Value>;
  using Rows = float[2][kDepth];  // of the first operand, this thread's

 public:
  static void multiply(WgmmaSums<kColumns>& sums, uint64_t a_descriptor, uint64_t b_descriptor,
                       int accumulate) {
    start([&sums, a_descriptor, b_descriptor, accumulate] {
      const EmulatedOperand a(a_descriptor);
      const int first = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
      Rows rows;
      for (int i = 0; i < 2; ++i) {
        if constexpr (kByRows) {
          a.read_column<Value>(first + 8 * i, rows[i]);
        } else {
          a.read_row<Value>(first + 8 * i, rows[i]);
        }
      }
      add_product(sums, rows, EmulatedOperand(b_descriptor), accumulate);
    });
  }

  // The first operand in registers, which are read as late.
  static void multiply(WgmmaSums<kColumns>& sums, const uint32_t (&a)[4], uint64_t b_descriptor,
                       int accumulate) {
    start([&sums, &a, b_descriptor, accumulate] {
      using Bits = typename EmulatedValue<Value>::Bits;
      constexpr int kInWord = 4 / sizeof(Bits);
      const emulator::Shown& all = emulator::show_in_warp(a);
      Rows rows;
      for (int k = 0; k < kDepth; ++k) {
        const uint32_t* const words = all.words[threadIdx.x % 32 / 4 * 4 + k / kInWord % 4];
        for (int i = 0; i < 2; ++i) {
          const uint32_t word = words[k / (kDepth / 2) * 2 + i];
          const auto bits = static_cast<Bits>(word >> k % kInWord * 16);
          rows[i][k] = EmulatedValue<Value>::decode(bits);
        }
      }
      add_product(sums, rows, EmulatedOperand(b_descriptor), accumulate);
    });
  }

 private:
  static void start(std::function<void()> product) {
    emulated_products[threadIdx.x].groups.back().push_back(std::move(product));
  }

  static void add_product(WgmmaSums<kColumns>& sums, const Rows& rows, const EmulatedOperand& b,
                          int accumulate) {
    // Several columns at a time: a sum's next term waits for the one before.
    constexpr int kTogether = kColumns % 16 == 0 ? 4 : 2;
    float columns[kTogether][kDepth];
    for (int first = 0; first < kColumns / 4; first += kTogether) {
      float upper[kTogether], lower[kTogether];
      for (int j = 0; j < kTogether; ++j) {
        const int i = first + j, index = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
        if constexpr (kByColumns) {
          b.read_column<Value>(index, columns[j]);
        } else {
          b.read_row<Value>(index, columns[j]);
        }
        const float* const sum = find_sum(sums, i);
        upper[j] = accumulate ? sum[0] : 0, lower[j] = accumulate ? sum[2] : 0;
      }
      for (int k = 0; k < kDepth; ++k) {
        for (int j = 0; j < kTogether; ++j) {
          upper[j] += rows[0][k] * columns[j][k];
          lower[j] += rows[1][k] * columns[j][k];
        }
      }
      for (int j = 0; j < kTogether; ++j) {
        float* const sum = find_sum(sums, first + j);
        sum[0] = upper[j], sum[2] = lower[j];
      }
    }
  }

  // Of a thread's i-th column; the lower row's lies two behind the upper's.
  static float* find_sum(WgmmaSums<kColumns>& sums, int i) {
    return &sums.value[i / 2 * 4 + i % 2];
  }
};

#pragma GCC pop_options

template <typename Operand, int kColumns>
struct Wgmma : EmulatedWgmma<Operand, kColumns> {};
template <typename Value, int kColumns>
struct Wgmma<ByColumns<Value>, kColumns> : EmulatedWgmma<Value, kColumns, true> {};
template <typename Value, int kColumns>
struct Wgmma<MnMajor<Value>, kColumns> : EmulatedWgmma<Value, kColumns, true, true> {};

}  // namespace convx
