// In place of csrc's: addresses of shared memory are offsets in the emulated block's.
#pragma once

#include <cstring>

#include "emulator.h"

namespace emulator {

inline char* shared_memory = nullptr;

}  // namespace emulator

namespace convx {

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - emulator::shared_memory);
}

// Addresses are multiples of what is read or written, or a GPU would fail.
template <typename T>
T* shared_pointer(uint32_t address, size_t bytes = sizeof(T)) {
  if (address % bytes != 0) emulator::fault = "misaligned access of shared memory";
  return reinterpret_cast<T*>(emulator::shared_memory + address);
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
inline void store_element(uint32_t address, uint16_t value) {
  *shared_pointer<uint16_t>(address) = value;
}

}  // namespace convx
