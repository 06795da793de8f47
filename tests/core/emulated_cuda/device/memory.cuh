// In place of csrc's: addresses of shared memory lead into the emulated block's.
#pragma once

#include <cstring>

#include "warps.h"

namespace emulator {

inline char* shared_memory = nullptr;
inline uint32_t shared_start = 0;  // its address

inline void use_shared_memory(void* memory, uint32_t start) {
  shared_memory = static_cast<char*>(memory);
  shared_start = start;
}

}  // namespace emulator

namespace convx {

inline uint32_t shared_address(const void* pointer) {
  return (emulator::cluster_rank << emulator::kRankBit) + emulator::shared_start +
         static_cast<uint32_t>(static_cast<const char*>(pointer) - emulator::shared_memory);
}

// Addresses are multiples of what is read or written, or a GPU would fail.
template <typename T>
[[gnu::always_inline]] inline T* shared_pointer(uint32_t address, size_t bytes = sizeof(T)) {
  if (address % bytes != 0) emulator::fault = "misaligned access of shared memory";
  if (address >> emulator::kRankBit != emulator::cluster_rank) {
    emulator::fault = "address of another block's shared memory";
  }
  address &= (1u << emulator::kRankBit) - 1;
  return reinterpret_cast<T*>(emulator::shared_memory + (address - emulator::shared_start));
}

template <typename T>
T load_element(uint32_t address) {
  return *shared_pointer<const T>(address);
}
inline uint32_t load_word(uint32_t address) { return load_element<uint32_t>(address); }
inline uint32_t load_half_word(uint32_t address) { return load_element<uint16_t>(address); }
inline void load_16_bytes(uint32_t address, uint32_t (&words)[4]) {
  std::memcpy(words, shared_pointer<uint32_t>(address, 16), 16);
}
inline void load_8_bytes(uint32_t address, uint32_t (&words)[2]) {
  std::memcpy(words, shared_pointer<uint2>(address), 8);
}
template <typename T>
void store_element(uint32_t address, T value) {
  *shared_pointer<T>(address) = value;
}
inline void store_word(uint32_t address, uint32_t word) { store_element(address, word); }
inline void store_8_bytes(uint32_t address, uint32_t first, uint32_t second) {
  *shared_pointer<uint2>(address) = {first, second};
}
inline void store_pair(uint32_t address, float first, float second) {
  *shared_pointer<float2>(address) = {first, second};
}
inline void store_16_bytes(uint32_t address, const uint32_t (&words)[4]) {
  std::memcpy(shared_pointer<uint32_t>(address, 16), words, 16);
}

// Each lane shows its row, and takes a word of each matrix.
inline void load_matrices(uint32_t address, uint32_t (&words)[4]) {
  uint32_t row[4];
  load_16_bytes(address, row);
  const emulator::Shown& all = emulator::show_in_warp(row);
  const int lane = threadIdx.x % 32;
  for (int matrix = 0; matrix < 4; ++matrix) {
    words[matrix] = all.words[8 * matrix + lane / 4][lane % 4];
  }
}

inline void load_transposed_matrices(uint32_t address, uint32_t (&words)[4]) {
  uint32_t row[4];
  load_16_bytes(address, row);
  const emulator::Shown& all = emulator::show_in_warp(row);
  const int lane = threadIdx.x % 32, column = lane / 4;
  for (int matrix = 0; matrix < 4; ++matrix) {
    words[matrix] = 0;
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = all.words[8 * matrix + 2 * (lane % 4) + i][column / 2];
      words[matrix] |= (word >> 16 * (column % 2) & 0xffff) << 16 * i;
    }
  }
}

inline void store_matrices(uint32_t address, const uint32_t (&words)[4]) {
  const emulator::Shown& all = emulator::show_in_warp(words);
  const int lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8;
  uint32_t of_row[4];
  for (int i = 0; i < 4; ++i) of_row[i] = all.words[4 * row + i][matrix];
  store_16_bytes(address, of_row);
}

inline void store_transposed_matrices(uint32_t address, const uint32_t (&words)[4]) {
  const emulator::Shown& all = emulator::show_in_warp(words);
  const int lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8;
  uint32_t of_row[4] = {};
  for (int i = 0; i < 8; ++i) {
    const uint32_t value = all.words[4 * i + row / 2][matrix] >> 16 * (row % 2) & 0xffff;
    of_row[i / 2] |= value << 16 * (i % 2);
  }
  store_16_bytes(address, of_row);
}

inline void store_global_8_bytes(void* to, uint32_t first, uint32_t second) {
  if (reinterpret_cast<uintptr_t>(to) % 8 != 0) emulator::fault = "misaligned store";
  const uint32_t words[] = {first, second};
  std::memcpy(to, words, 8);
}
inline void store_global_16_bytes(void* to, const uint32_t (&words)[4]) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0) emulator::fault = "misaligned store";
  std::memcpy(to, words, 16);
}
inline void stream_16_bytes(void* to, const uint32_t (&words)[4]) {
  store_global_16_bytes(to, words);
}

}  // namespace convx
